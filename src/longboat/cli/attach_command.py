"""Watch a run until it ends, and exit with the run's exit code.

Use it to return to a run that was started with --detach, on a cluster, or in another terminal. Ctrl-C stops watching,
not the run (exit 130). If a run on a cluster only serves, attach prints its address and exits.

  longboat attach                 the newest run
  longboat attach mnist --tail 50

RUN is a run's id, the beginning of one, or a job's name; without it, the newest run.
"""

from __future__ import annotations

import argparse
import time

from longboat.cli import engine_options, run_summary
from longboat.cli.console import Console, next_lines
from longboat.cli.display import Display, DisplayOptions
from longboat.cli.run_viewer import ended
from longboat.runs import explanation
from longboat.runtime.errors import FAILED, INTERRUPTED


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run (the newest if not given)")
    parser.add_argument(
        "--tail", type=int, default=10, metavar="N", help="start with the last N lines of each rank (10)"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="hide the ranks' output")
    parser.add_argument("--json", action="store_true", help="all events of the run as JSON, one per line")
    engine_options.add_place_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    run = engine_options.find(args, console, args.run)
    watch = run.follow(not args.quiet and not args.json, console.say)
    watch.poll()
    state, resumed = watch.state, run.after
    if run.outlives_cli and state.state == "serving" and not args.json:
        return ended(run, state, console)
    if state.over and not args.json:
        console.say(run_summary.ending(state, run.directory, time.time()))
        return FAILED if state.code is None else state.code
    try:
        if not args.json:
            again = resumed and state.events <= resumed
            stands = "starting again" if again else f"{state.state} for {explanation.took(state, time.time())}"
            console.say(f"attached to {run.id}, {stands}")
        options = DisplayOptions(
            json=args.json,
            quiet=args.quiet,
            after=0 if args.json else state.events,
            resumed=resumed,
            tail=args.tail,
            until_serving=run.outlives_cli,
            rest=run.pause,
        )
        state = Display(console, run.directory, options).follow()
    except KeyboardInterrupt:
        lines = next_lines([f"longboat attach {run.id}", f"longboat stop {run.id}"])
        console.say("\n".join([f"{run.id} continues", *lines]))
        return INTERRUPTED
    return ended(run, state, console)
