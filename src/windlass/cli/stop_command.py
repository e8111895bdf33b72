"""Stops a run: its ranks get SIGTERM, the grace period of their stage, then SIGKILL; with --now SIGKILL at once.

RUN is a run's id, the beginning of one, or a job's name; without it, the newest run.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.cli import place
from windlass.cli.status_command import whole
from windlass.cli.world import World
from windlass.errors import FAILED, OK, WindlassError
from windlass.runs.state import load

if TYPE_CHECKING:
    from windlass.engines.kubernetes.mirror import Mirror


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run (the newest if not given)")
    parser.add_argument("--now", action="store_true", help="kill at once, without the grace period")
    parser.add_argument("--no-wait", action="store_true", help="do not wait until it has ended")
    parser.add_argument("--timeout", type=float, default=600, metavar="SECONDS", help="how long to wait (600)")
    parser.add_argument("--json", action="store_true", help="how it stands then, as `status RUN --json` says it")
    place.add_place_arguments(parser)


def main(args: argparse.Namespace, world: World) -> int:
    from windlass.engines.local import engine

    run, copy = place.find(args, world, args.run)
    if copy is not None:
        return _stop_there(copy, args, world)
    if not engine.driven(str(run)):
        state = load(run).state
        raise WindlassError(f"{run.name} is not running: {state}", f"see windlass status {run.name}")
    wait = None if args.no_wait else args.timeout
    if not engine.stop(str(run), now=args.now, wait=wait) and engine.driven(str(run)):
        world.say(f"error: {run.name} has not ended within {args.timeout:g} s\n\nhint: windlass stop --now {run.name}")
        return _told(args, world, run, FAILED)
    world.say(f"{run.name} was asked to stop" if args.no_wait else f"{run.name} has ended")
    if not args.no_wait:
        world.next(f"windlass status {run.name}", f"windlass run --resume {run.name}", f"windlass rm {run.name}")
    return _told(args, world, run, OK)


def _stop_there(copy: Mirror, args: argparse.Namespace, world: World) -> int:
    """In a cluster: the driver is asked, and its journal says when all has ended."""
    copy.sync()
    if copy.whole() or not copy.cluster.stop(copy.run, "windlass stop", args.now):
        if copy.cluster.take_down(copy.run):
            world.say(f"{copy.run} had ended; the servers that it had left are gone")
            world.next(f"windlass rm {copy.run}")
            return _told(args, world, copy.path, OK)
        raise WindlassError(f"{copy.run} is not running", f"see windlass status {copy.run}")
    if args.no_wait:
        world.say(f"{copy.run} was asked to stop")
        return _told(args, world, copy.path, OK)
    due = time.monotonic() + args.timeout
    while not copy.whole():
        if time.monotonic() > due:
            hint = f"windlass stop --now {copy.run}"
            world.say(f"error: {copy.run} has not ended within {args.timeout:g} s\n\nhint: {hint}")
            return _told(args, world, copy.path, FAILED)
        time.sleep(0.3)
        copy.sync()
    world.say(f"{copy.run} has ended")
    world.next(f"windlass status {copy.run}", f"windlass rm {copy.run}")
    return _told(args, world, copy.path, OK)


def _told(args: argparse.Namespace, world: World, run: Path, code: int) -> int:
    if args.json:
        world.print_json(whole(run, load(run)))
    return code
