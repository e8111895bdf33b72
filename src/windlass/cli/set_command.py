"""Change a param in a job file.

Only the value is replaced: comments, layout and everything else stay as they are. Says what the value
was and in how many places the file uses it.
"""

from __future__ import annotations

import argparse

from windlass.cli.world import World
from windlass.errors import OK


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="job file, or a directory with job.yaml")
    parser.add_argument("name", metavar="NAME", help="the param")
    parser.add_argument("value", metavar="VALUE", help="its new value")


def main(args: argparse.Namespace, world: World) -> int:
    import shlex

    from windlass.spec.editing import change

    done = change(args.file, args.name, args.value)
    places = "1 place" if done.count == 1 else f"{done.count} places"
    world.print(f"set {args.name} to {args.value or 'nothing'} (was {done.old or 'nothing'}), used in {places}")
    file = shlex.quote(args.file)
    world.say(f"\nnext:\n  windlass params {file}\n  windlass plan {file}")
    return OK
