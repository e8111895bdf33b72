"""Runs a command beside a rank: in its directory, with its environment, seeing its processes.

    windlass exec RUN -- CMD [ARG ...]
    windlass exec --rank 1 RUN            (without a command: a shell)

RUN is a run's id, the beginning of one, or a job's name; without it, the newest run. The exit
code is the command's.
"""

from __future__ import annotations

import argparse

from windlass.cli import place
from windlass.cli.world import World

TAKES_COMMAND = True


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run (the newest if not given)")
    parser.add_argument("--stage", help="stage of the rank (the one that runs)")
    parser.add_argument("--role", help="role of the rank (the first that runs)")
    parser.add_argument("--rank", type=int, help="number of the rank (the first that runs)")
    place.add_place_arguments(parser)


def main(args: argparse.Namespace, world: World) -> int:
    from windlass.engines.local.beside import execute, running

    run, copy = place.find(args, world, args.run)
    if copy is not None:
        from windlass.engines.kubernetes import beside

        copy.sync()
        there = running(run, args.stage, args.role, args.rank)
        return beside.execute(copy.cluster, copy.run, there, args.command, world.environ)
    seat = running(run, args.stage, args.role, args.rank)
    return execute(seat.pid, args.command or [world.environ.get("SHELL") or "/bin/sh"])
