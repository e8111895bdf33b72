"""Remove old runs from this machine. Runs that still run are never removed.

Use it to free disk space. Choose runs with --older-than (counted from a run's end), with --keep (all but the newest N),
or with both.

  longboat prune --older-than 7d --dry-run
  longboat prune --keep 10
"""

from __future__ import annotations

import argparse
import time

from longboat.cli.console import Console
from longboat.cli.removal_report import RemovalReport
from longboat.engines import registry
from longboat.engines.interface import EngineContext
from longboat.runs import formatting
from longboat.runs.store import Store, born, tree_size
from longboat.runtime.errors import OK, LongboatError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--older-than", metavar="TIME", help="runs that ended longer ago than 12h, 7d, 4w")
    parser.add_argument("--keep", type=int, metavar="N", help="keep the newest N runs")
    parser.add_argument("--dry-run", action="store_true", help="print what would be removed, and remove nothing")
    parser.add_argument("--json", action="store_true", help="print what was, or would be, removed as JSON")


def main(args: argparse.Namespace, console: Console) -> int:
    if args.older_than is None and args.keep is None:
        raise LongboatError(
            "no runs were chosen", "for example `longboat prune --older-than 7d`, or `longboat prune --keep 10`"
        )
    if args.keep is not None and args.keep < 0:
        raise LongboatError(f"--keep {args.keep}: must be 0 or more")
    engine = registry.engine(registry.DEFAULT, EngineContext(console.home, console.environ))
    now = time.time()
    age = formatting.seconds(args.older_than) if args.older_than is not None else 0.0
    report = RemovalReport(console, args.json)
    count = total = 0
    for state in engine.runs().states[args.keep or 0 :]:
        run = engine.find(state.id)
        if not state.over or now - (state.ended or born(run.directory)) < age:
            continue
        size = tree_size(run.directory)
        count, total = count + 1, total + size
        if args.dry_run:
            report.gone(run.id, f" ({formatting.size(size)})", verb="would remove", bytes=size)
        else:
            removal = run.remove()
            report.gone(run.id, removal.detail, **removal.facts)
    if not args.dry_run:
        Store(console.home).sweep()
    report.close()
    if count == 0:
        console.say("nothing to remove")
    else:
        console.say(f"{formatting.plural(count, 'run')}, {formatting.size(total)}")
    return OK
