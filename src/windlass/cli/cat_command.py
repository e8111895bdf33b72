"""Prints a file of a run: `windlass cat RUN:path` or `windlass cat RUN path`.

RUN is a run's id, the beginning of one, or a job's name; `:path` means the newest run. A file
that is not text is not printed on a terminal unless --force is given.
"""

from __future__ import annotations

import argparse

from windlass.cli import loglines, place
from windlass.cli.world import World
from windlass.errors import OK, WindlassError
from windlass.runs import files

PIECE = 1 << 20


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN[:PATH]", help="a run, and the file's path in it")
    parser.add_argument("path", nargs="?", metavar="PATH", help="the file's path in the run")
    parser.add_argument("--force", action="store_true", help="print what is not text on a terminal too")
    place.add_place_arguments(parser)


def main(args: argparse.Namespace, world: World) -> int:
    text, _, path = args.run.partition(":")
    run, copy = place.find(args, world, text or None)
    path = args.path or path
    if not path:
        raise WindlassError("which file?", f"`windlass ls {run.name}` lists them; then `windlass cat {run.name}:PATH`")
    if copy is not None:
        copy.fetch(path)
    found = files.inside(run, path)
    if not found.is_file():
        raise WindlassError(f"{path} is no file", f"to list it: `windlass ls {run.name}:{path}`")
    try:
        with open(found, "rb") as file:
            data = file.read(PIECE)
            if b"\0" in data and world.out.isatty() and not args.force:
                raise WindlassError(
                    f"{path} is not text",
                    f"print it all the same with --force, or send it to a file: the file is {found}",
                )
            while data:
                loglines.write(world.out, data)
                data = file.read(PIECE)
    except PermissionError:
        raise WindlassError(f"{found} may not be read") from None
    return OK
