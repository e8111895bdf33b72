"""Lists what runs have left in a cluster, run by run, and what of it may cost money.

Pods that still run, volumes and the servers behind them, load balancers; buckets that runs wrote to,
and images that were pushed from here. Each has the command that removes it. With RUN, only what
that run has left; it may be gone itself.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from longboat.cli import engine_options, table
from longboat.cli.console import Console
from longboat.engines import registry
from longboat.engines.interface import KeepsData, Leftover, able
from longboat.runs import formatting
from longboat.runtime.errors import OK


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run; all runs if not given")
    parser.add_argument("--json", action="store_true", help="the same as JSON, ages in seconds")
    parser.add_argument("--on", metavar="ENGINE", default=registry.CLUSTER, help="where: kubernetes (default)")
    engine_options.add_cluster_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    engine = engine_options.engine_of(args, console)
    found = able(engine, KeepsData, "left").leftovers(args.run or "") + ([] if args.run else _images(console))
    if args.json:
        console.print_json([asdict(each) for each in found])
    elif not found:
        console.say(f"nothing is left {engine.runs(1).where}")
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
