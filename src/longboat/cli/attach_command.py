"""Watches a run that is under way until it ends, and ends with the run's own exit code. On a cluster a run that does
nothing but serve has been watched, too: it is said where it answers.

RUN is a run's id, the beginning of one, or a job's name; without it, the newest run.
Ctrl-C ends the viewing only: the run goes on (exit 130).
"""

from __future__ import annotations

import argparse
import time

from longboat.cli import run_location, run_summary
from longboat.cli.console import Console, next_lines
from longboat.cli.display import Display
from longboat.runs import explanation
from longboat.runs.journal_fold import load
from longboat.runs.run_state import starting_again
from longboat.runtime.errors import FAILED, INTERRUPTED, OK


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run (the newest if not given)")
    parser.add_argument(
        "--tail", type=int, default=10, metavar="N", help="begin with the last N lines of each rank (10)"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="leave out what the ranks print")
    parser.add_argument("--json", action="store_true", help="all events of the run as JSON, one a line")
    run_location.add_place_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    run, copy = run_location.find(args, console, args.run)
    logs = not args.quiet and not args.json
    if copy is not None:
        copy.keep_up(logs, console.say)
    before = copy.after if copy is not None and copy.coming_up else 0  # asked first: its driver may write any moment
    state = starting_again(load(run)) if before else load(run)
    if copy is not None and state.state == "serving" and not args.json:
        from longboat.cli.cluster_run import serves

        console.say(serves(copy, state))
        return OK
    if state.over and not args.json:
        console.say(run_summary.ending(state, run, time.time()))
        return FAILED if state.code is None else state.code
    try:
        if not args.json:
            stands = "starting again" if before else f"{state.state} for {explanation.took(state, time.time())}"
            console.say(f"attached to {run.name}, {stands}")
        after = 0 if args.json else state.events
        display = Display(
            console,
            run,
            json=args.json,
            quiet=args.quiet,
            after=after,
            resumed=before,
            tail=args.tail,
            until_serving=copy is not None,
            rest=time.sleep if copy is None else copy.wait,
        )
        state = display.follow()
    except KeyboardInterrupt:
        lines = next_lines([f"longboat attach {run.name}", f"longboat stop {run.name}"])
        console.say("\n".join([f"{run.name} goes on", *lines]))
        return INTERRUPTED
    if copy is not None and state.state == "serving":
        from longboat.cli.cluster_run import serves

        console.say(serves(copy, state))
        return OK
    return FAILED if state.code is None else state.code
