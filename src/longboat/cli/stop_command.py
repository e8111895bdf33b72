"""Stop a run: send SIGTERM to its ranks, wait for the grace period of their stage, then send SIGKILL.

Use it to end a run early; `longboat run --resume RUN` continues it. A run that has ended is reported, not changed.

  longboat stop                 the newest run
  longboat stop mnist --now     SIGKILL at once

RUN is a run's id, the beginning of one, or a job's name; without it, the newest run.
"""

from __future__ import annotations

import argparse

from longboat.cli import engine_options
from longboat.cli.console import Console
from longboat.cli.status_command import run_json
from longboat.engines.interface import StopOutcome
from longboat.runs import formatting
from longboat.runs.journal_fold import load
from longboat.runtime.errors import FAILED, OK


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run (the newest if not given)")
    parser.add_argument("--now", action="store_true", help="kill at once, without the grace period")
    parser.add_argument("--no-wait", action="store_true", help="do not wait until the run has ended")
    parser.add_argument("--timeout", default="10m", metavar="TIME", help="how long to wait (10m)")
    parser.add_argument("--json", action="store_true", help="print the state afterwards, like `status RUN --json`")
    engine_options.add_place_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    run = engine_options.find(args, console, args.run)
    limit = None if args.no_wait else formatting.seconds(args.timeout)
    outcome = run.stop("longboat stop", args.now, limit)
    if outcome is StopOutcome.LATE:
        within = f"{run.id} has not ended within {formatting.span(limit or 0.0)}"
        console.say(f"error: {within}\n\nhint: longboat stop --now {run.id}")
    elif outcome is StopOutcome.NOT_RUNNING:
        console.say(f"{run.id} {outcome.value}: {load(run.directory).state}")
    else:
        console.say(f"{run.id} {outcome.value}")
    if outcome is StopOutcome.ENDED:
        console.next(f"longboat status {run.id}", f"longboat run --resume {run.id}", f"longboat rm {run.id}")
    if args.json:
        console.print_json(run_json(run.directory, load(run.directory)))
    return FAILED if outcome is StopOutcome.LATE else OK
