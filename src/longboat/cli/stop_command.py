"""Stops a run: its ranks get SIGTERM, the grace period of their stage, then SIGKILL; with --now SIGKILL at once.

RUN is a run's id, the beginning of one, or a job's name; without it, the newest run. One that has ended already is
left as it is, and that is said.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from longboat.cli import run_location
from longboat.cli.console import Console
from longboat.cli.status_command import whole
from longboat.runs import formatting
from longboat.runs.journal_fold import load
from longboat.runtime.errors import FAILED, OK

if TYPE_CHECKING:
    from longboat.engines.kubernetes.replica import RunReplica

ENDED, ASKED, LATE = "has ended", "was asked to stop", "has not ended"
LEFT = "had ended; the servers that it had left are gone"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run (the newest if not given)")
    parser.add_argument("--now", action="store_true", help="kill at once, without the grace period")
    parser.add_argument("--no-wait", action="store_true", help="do not wait until it has ended")
    parser.add_argument("--timeout", default="10m", metavar="TIME", help="how long to wait (10m)")
    parser.add_argument("--json", action="store_true", help="how it stands then, as `status RUN --json` says it")
    run_location.add_place_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    run, copy = run_location.find(args, console, args.run)
    limit = None if args.no_wait else formatting.seconds(args.timeout)
    stopped = _stopped(run, args.now, limit) if copy is None else _stopped_there(copy, args.now, limit)
    if stopped == LATE:
        within = f"{run.name} has not ended within {formatting.span(limit or 0.0)}"
        console.say(f"error: {within}\n\nhint: longboat stop --now {run.name}")
    else:
        console.say(f"{run.name} {stopped or f'is not running: {load(run).state}'}")
    if stopped == ENDED:
        resume = [f"longboat run --resume {run.name}"] if copy is None else []
        console.next(f"longboat status {run.name}", *resume, f"longboat rm {run.name}")
    if args.json:
        console.print_json(whole(run, load(run)))
    return FAILED if stopped == LATE else OK


def _stopped(run: Path, now: bool, limit: float | None) -> str:
    """What came of it, in words; empty when it did not run."""
    from longboat.engines.local import driving

    if not driving.driven(str(run)):
        return ""
    if not driving.stop(str(run), now=now, wait=limit) and driving.driven(str(run)):
        return ASKED if limit is None else LATE
    return ASKED if limit is None else ENDED


def _stopped_there(copy: RunReplica, now: bool, limit: float | None) -> str:
    """In a cluster: the driver is asked, and its journal says when all has ended."""
    due = time.monotonic() + (limit or 0.0)
    if not copy.stop("longboat stop", now, limit):
        return LEFT if copy.cluster.take_down(copy.run) else ""
    if limit is None:
        return ASKED
    while not copy.whole():
        if time.monotonic() > due:
            return LATE
        time.sleep(0.3)
        copy.sync()
    return ENDED
