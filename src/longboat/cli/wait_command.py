"""Wait until a run ends or serves, and exit with the run's exit code.

Use it in scripts, after `longboat run --detach`. It prints nothing while it waits. After --timeout it exits with 1;
Ctrl-C stops waiting (exit 130). In both cases the run continues.

  longboat wait mnist --timeout 2h && longboat cp mnist:output ./results

RUN is a run's id, the beginning of one, or a job's name; without it, the newest run.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from longboat.cli import engine_options
from longboat.cli.console import Console
from longboat.cli.status_command import run_json
from longboat.runs import formatting
from longboat.runs.explanation import headline
from longboat.runs.run_state import RunState
from longboat.runs.watch import PAUSE, release
from longboat.runtime.errors import FAILED, INTERRUPTED, OK


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run (the newest if not given)")
    parser.add_argument("--timeout", metavar="TIME", help="give up after 30s, 5m, 2h")
    parser.add_argument("--json", action="store_true", help="print the state afterwards, like `status RUN --json`")
    engine_options.add_place_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    watch = engine_options.find(args, console, args.run).follow(logs=False, say=console.say)
    run = watch.run
    limit = formatting.seconds(args.timeout) if args.timeout is not None else None
    end = None if limit is None else time.monotonic() + limit
    try:
        watch.poll()
        while not watch.over and watch.state.state != "serving":
            if end is not None and time.monotonic() >= end:
                console.say(
                    f"{run.name} is still {watch.state.state} after {formatting.span(limit or 0.0)}; it continues"
                )
                return _report(args, console, run, watch.state, FAILED)
            time.sleep(PAUSE)
            watch.poll()
        if watch.over:
            release(run, end)
    except KeyboardInterrupt:
        return INTERRUPTED
    state = watch.state
    console.say(headline(state))
    code = FAILED if state.code is None else state.code
    return _report(args, console, run, state, OK if state.state == "serving" else code)


def _report(args: argparse.Namespace, console: Console, run: Path, state: RunState, code: int) -> int:
    if args.json:
        console.print_json(run_json(run, state))
    return code
