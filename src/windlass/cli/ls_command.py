"""Lists the files of a run with their sizes.

RUN is a run's id, the beginning of one, or a job's name; without it, the newest run. RUN:path
lists one directory of it.
"""

from __future__ import annotations

import argparse
import json

from windlass.cli import place, summary, table
from windlass.cli.world import World
from windlass.errors import OK, WindlassError
from windlass.runs import files, words


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", nargs="?", metavar="RUN[:PATH]", help="a run (the newest if not given), and a path in it"
    )
    parser.add_argument("--depth", type=int, default=3, metavar="N", help="levels of directories to show (3)")
    parser.add_argument("--json", action="store_true", help="paths and sizes in bytes as JSON")
    place.add_place_arguments(parser)


def main(args: argparse.Namespace, world: World) -> int:
    text, _, path = (args.run or "").partition(":")
    run, copy = place.find(args, world, text or None)
    start = run / path if copy is not None else files.inside(run, path)
    if copy is not None:
        found = [files.Entry(name, size, 0) for name, size in copy.files() if files.below(name, path)]
        if not found:
            raise WindlassError(f"{run.name} has no {path}", f"`windlass ls {run.name}` lists what is in it")
    elif start.is_dir():
        found = list(files.walk(run, start, max(args.depth, 1)))
    else:
        found = [files.Entry(str(start.relative_to(run)), start.stat().st_size, 0)]
    if args.json:
        world.print(json.dumps([{"path": entry.path, "size": entry.size} for entry in found], indent=2))
        return OK
    sizes = [words.size(entry.size) for entry in found]
    wide = max(map(len, sizes), default=0)
    if found:
        world.print(
            table.render((), [(size.rjust(wide), entry.path) for size, entry in zip(sizes, found, strict=True)])
        )
    plain = [entry.path for entry in found if not entry.path.endswith("/")]
    where = str(start) if copy is None else f"in the namespace {copy.cluster.namespace}"
    world.say("\n".join([where, *summary.next_lines([f"windlass cat {run.name}:{plain[-1]}"] if plain else [])]))
    return OK
