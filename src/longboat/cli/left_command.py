"""List what runs left in a cluster, and what of it may cost money.

Use it when you are done: it lists pods that still run, volumes and their servers, load balancers, buckets that runs
wrote to, and images pushed from this machine, each with the command that removes it.

  longboat left
  longboat left mnist -n training

With RUN it lists what that run left, even if the run itself is gone.
"""

from __future__ import annotations

import argparse

from longboat.cli import engine_options, table
from longboat.cli.console import Console
from longboat.engines import registry
from longboat.engines.interface import KeepsData, Leftover, able
from longboat.runs import formatting
from longboat.runtime.errors import OK
from longboat.runtime.light_dataclasses import asdict


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run (default: all runs)")
    parser.add_argument("--json", action="store_true", help="print JSON, ages in seconds")
    parser.add_argument("--on", metavar="ENGINE", default=registry.CLUSTER, help="where: kubernetes (default)")
    engine_options.add_cluster_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    engine = engine_options.engine_of(args, console)
    leftovers = able(engine, KeepsData, "left").leftovers(args.run or "") + ([] if args.run else _images(console))
    if args.json:
        console.print_json([asdict(each) for each in leftovers])
    elif not leftovers:
        console.say(f"nothing is left {engine.runs(1).where}")
    else:
        rows = [
            (each.run, each.kind, each.name, "" if each.age is None else formatting.span(each.age), each.cost)
            for each in leftovers
        ]
        console.print(table.render(("RUN", "KIND", "NAME", "AGE", "MAY COST"), rows, columns=console.columns))
        console.next(*dict.fromkeys(each.remove for each in leftovers))
    return OK


def _images(console: Console) -> list[Leftover]:
    """Images that were pushed from this machine; they belong to no run."""
    import time

    from longboat.images import push_record

    return [
        Leftover(
            "",
            "Image",
            made.reference,
            time.time() - made.when,
            f"{formatting.size(made.size)} in its registry" if made.size else "space in its registry",
            "longboat rm --images",
        )
        for made in push_record.pushed(console.home)
    ]
