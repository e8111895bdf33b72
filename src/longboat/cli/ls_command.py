"""Lists the files of a run with their sizes.

RUN is a run's id, the beginning of one, or a job's name; without it, the newest run. RUN:path
lists one directory of it, RUN:storage/NAME what is in one of the job's mounts (RUN:NAME will do).
In a cluster that is asked of a pod that comes and goes by itself.
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
    parser.add_argument("--depth", type=int, default=3, metavar="N", help="levels of directories to show (3)")
    parser.add_argument("--json", action="store_true", help="paths and sizes in bytes as JSON")
    engine_options.add_place_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    text, _, path = (args.run or "").partition(":")
    with engine_options.find(args, console, text or None).files() as files:
        found = files.entries(path, max(args.depth, 1))
    if args.json:
        console.print_json([{"path": entry.path, "size": entry.size} for entry in found])
        return OK
    sizes = [formatting.size(entry.size) for entry in found]
    wide = max(map(len, sizes), default=0)
    if found:
        console.print(
            table.render((), [(size.rjust(wide), entry.path) for size, entry in zip(sizes, found, strict=True)])
        )
    plain = [entry.path for entry in found if not entry.path.endswith("/")]
    commands = [f"longboat cat {files.run}:{plain[-1]}", f"longboat cp {files.run}:{plain[-1]} ."] if plain else []
    if not path.strip("/"):
        commands += [f"longboat ls {files.run}:{mount}" for mount in files.mounts]
    where = files.where if found else f"{files.where}: nothing is in it"
    console.say(where)
    console.next(*commands)
    return OK
