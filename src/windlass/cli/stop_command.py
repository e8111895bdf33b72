"""Stops a run: its ranks get SIGTERM, the grace period of their stage, then SIGKILL.

RUN is a run's id, the beginning of one, or a job's name; without it, the newest run.
"""

from __future__ import annotations

import argparse

from windlass.cli.world import World
from windlass.errors import FAILED, OK, WindlassError


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run (the newest if not given)")
    parser.add_argument("--now", action="store_true", help="kill at once, without the grace period")
    parser.add_argument("--no-wait", action="store_true", help="do not wait until it has ended")
    parser.add_argument("--timeout", type=float, default=600, metavar="SECONDS", help="how long to wait (600)")


def main(args: argparse.Namespace, world: World) -> int:
    from windlass.engines.local import engine
    from windlass.runs.state import load
    from windlass.runs.store import Store

    run = Store(world.home).find(args.run)
    if not engine.driven(str(run)):
        state = load(run).state
        raise WindlassError(f"{run.name} is not running: {state}", f"see windlass status {run.name}")
    wait = None if args.no_wait else args.timeout
    if not engine.stop(str(run), now=args.now, wait=wait) and engine.driven(str(run)):
        world.say(f"error: {run.name} has not ended within {args.timeout:g} s\n\nhint: windlass stop --now {run.name}")
        return FAILED
    world.say(f"{run.name} was asked to stop" if args.no_wait else f"{run.name} has ended")
    if not args.no_wait:
        world.say(f"next:\n  windlass status {run.name}\n  windlass run --resume {run.name}\n  windlass rm {run.name}")
    return OK
