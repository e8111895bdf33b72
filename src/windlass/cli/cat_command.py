"""Prints a file of a run: `windlass cat RUN:path` or `windlass cat RUN path`.

RUN is a run's id, the beginning of one, or a job's name; `:path` means the newest run. A file
that is not text is not printed on a terminal unless --force is given. `storage/NAME/...` is a
path in one of the job's mounts.
"""

from __future__ import annotations

import argparse

from windlass.cli import loglines, place
from windlass.cli.world import World
from windlass.errors import OK, WindlassError

PIECE = 1 << 20


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN[:PATH]", help="a run, and the file's path in it")
    parser.add_argument("path", nargs="?", metavar="PATH", help="the file's path in the run")
    parser.add_argument("--force", action="store_true", help="print what is not text on a terminal too")
    place.add_place_arguments(parser)


def main(args: argparse.Namespace, world: World) -> int:
    text, _, path = args.run.partition(":")
    path = args.path or path
    with place.shelf(args, world, text or None) as shelf:
        run = shelf.run
        if not path:
            raise WindlassError("which file?", f"`windlass ls {run}` lists them; then `windlass cat {run}:PATH`")
        for item in shelf.items(path):
            if item.source is None:
                raise WindlassError(f"{path} is no file", f"to list it: `windlass ls {run}:{path}`")
            data = item.source.read(PIECE)
            if b"\0" in data and world.out.isatty() and not args.force:
                raise WindlassError(
                    f"{path} is not text",
                    f"print it all the same with --force, or copy it: `windlass cp {run}:{path} .`",
                )
            while data:
                loglines.write(world.out, data)
                data = item.source.read(PIECE)
            break
        else:
            raise WindlassError(f"{path} is no file", f"to list it: `windlass ls {run}:{path}`")
    return OK
