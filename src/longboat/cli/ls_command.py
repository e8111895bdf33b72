"""List the files of a run with their sizes.

Use it to find a path for `longboat cat` and `longboat cp`.

  longboat ls mnist
  longboat ls mnist:output --depth 1
  longboat ls mnist:storage/data     a mount of the job (mnist:data works too)

RUN is a run's id, the beginning of one, or a job's name; without it, the newest run. For a run in a cluster, a
temporary pod may be started to read its volume.
"""

from __future__ import annotations

import argparse

from longboat.cli import engine_options, table
from longboat.cli.console import Console
from longboat.runs import formatting
from longboat.runtime.errors import OK


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", nargs="?", metavar="RUN[:PATH]", help="a run (the newest if not given), and a path in it"
    )
    parser.add_argument("--depth", type=int, default=3, metavar="N", help="directory levels to show (3)")
    parser.add_argument("--json", action="store_true", help="print paths and sizes in bytes as JSON")
    engine_options.add_place_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    text, _, path = (args.run or "").partition(":")
    with engine_options.find(args, console, text or None).files() as files:
        entries = files.entries(path, max(args.depth, 1))
    if args.json:
        console.print_json([{"path": entry.path, "size": entry.size} for entry in entries])
        return OK
    sizes = [formatting.size(entry.size) for entry in entries]
    wide = max(map(len, sizes), default=0)
    if entries:
        console.print(
            table.render((), [(size.rjust(wide), entry.path) for size, entry in zip(sizes, entries, strict=True)])
        )
    plain = [entry.path for entry in entries if not entry.path.endswith("/")]
    commands = [f"longboat cat {files.run}:{plain[-1]}", f"longboat cp {files.run}:{plain[-1]} ."] if plain else []
    if not path.strip("/"):
        commands += [f"longboat ls {files.run}:{mount}" for mount in files.mounts]
    where = files.where if entries else f"{files.where}: empty"
    console.say(where)
    console.next(*commands)
    return OK
