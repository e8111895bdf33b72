"""Lists what runs have left in a cluster, run by run, and what of it may cost money.

Pods that still run, volumes and the servers behind them, load balancers; buckets that runs wrote to,
and images that were pushed from here. Each has the command that removes it. With RUN, only what
that run has left; it may be gone itself.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from longboat.cli import run_location, table
from longboat.cli.console import Console
from longboat.runs import formatting
from longboat.runtime.errors import OK

if TYPE_CHECKING:
    from longboat.engines.kubernetes.leftovers import Leftover


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run; all runs if not given")
    parser.add_argument("--json", action="store_true", help="the same as JSON, ages in seconds")
    parser.add_argument("--on", metavar="ENGINE", choices=("kubernetes",), default="kubernetes", help="kubernetes")
    run_location.add_cluster_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    from longboat.engines.kubernetes import leftovers

    cluster = run_location.cluster_of(args, console)
    found = leftovers.found(cluster, args.run or "") + ([] if args.run else _images(console))
    if args.json:
        console.print_json([asdict(each) for each in found])
    elif not found:
        console.say(f"nothing is left in the namespace {cluster.namespace}")
    else:
        rows = [
            (each.run, each.kind, each.name, "" if each.age is None else formatting.span(each.age), each.cost)
            for each in found
        ]
        console.print(table.render(("RUN", "KIND", "NAME", "AGE", "MAY COST"), rows, columns=console.columns))
        console.next(*dict.fromkeys(each.remove for each in found))
    return OK


def _images(console: Console) -> list[Leftover]:
    """Images that were pushed from here: no run owns them."""
    import time

    from longboat.engines.kubernetes.leftovers import Leftover
    from longboat.images import push_record

    return [
        Leftover(
            "",
            "Image",
            made.reference,
            time.time() - made.when,
            f"{formatting.size(made.size)} in its registry" if made.size else "its registry's room",
            "longboat rm --images",
        )
        for made in push_record.pushed(console.home)
    ]
