"""`windlass run --on kubernetes`: submit, then watch. The run does not need this process."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from windlass.cli import building, place, summary
from windlass.cli.jobfile import load_job
from windlass.cli.place import cluster_of
from windlass.cli.world import World
from windlass.errors import FAILED, INTERRUPTED, OK, WindlassError
from windlass.export.objects import Setting
from windlass.runs import words

if TYPE_CHECKING:
    from windlass.engines.kubernetes.mirror import Mirror


def main(args: argparse.Namespace, world: World) -> int:
    from windlass.engines.kubernetes.mirror import submitted
    from windlass.engines.local.engine import secrets_from_here

    if args.resume is not None:
        return _resumed(args, world)
    if args.first or args.only:
        raise WindlassError("--from and --only are for runs on this machine", "run the whole job in the cluster")
    plan = load_job(args, world).plan()
    cluster = cluster_of(args, world)
    if args.build:
        plan = building.built_plan(plan, args, world)
    copy = submitted(plan, setting_of(args), secrets_from_here(plan, world.environ), cluster, world.home, world.say)
    run = copy.run
    commands = [f"windlass attach {run}", f"windlass logs -f {run}", f"windlass stop {run}"]
    if args.detach:
        world.print(run)
        told = f"{run} runs in the namespace {cluster.namespace} of the cluster"
        world.say("\n".join([told, *summary.next_lines(commands)]))
        return OK
    world.say(f"submitted {run} to the namespace {cluster.namespace}")
    return watch(copy, world, commands, args.json, args.quiet)


def _resumed(args: argparse.Namespace, world: World) -> int:
    """Goes on with a run that has failed or was stopped, with the plan and the code that it has."""
    if args.file != "." or args.sets or args.preset or args.env_files:
        raise WindlassError(
            "a run in a cluster goes on with the plan that it has", "leave out the job file and its settings"
        )
    _, copy = place.find(args, world, args.resume)
    if copy is None:
        raise WindlassError(f"{args.resume} is a run of this machine", "leave out --on")
    copy.go_on()
    commands = [f"windlass attach {copy.run}", f"windlass stop {copy.run}"]
    if args.detach:
        world.print(copy.run)
        world.say("\n".join([f"{copy.run} goes on in the cluster", *summary.next_lines(commands)]))
        return OK
    return watch(copy, world, commands, args.json, args.quiet)


def watch(copy: Mirror, world: World, commands: list[str], json: bool, quiet: bool) -> int:
    from windlass.cli.display import Display

    copy.follow(logs=not quiet and not json, say=world.say)
    try:
        after = copy.after
        state = Display(world, copy.path, json=json, quiet=quiet, after=after, resumed=after > 0).follow()
    except KeyboardInterrupt:
        world.say("\n".join([f"{copy.run} goes on in the cluster", *summary.next_lines(commands)]))
        return INTERRUPTED
    return FAILED if state.code is None else state.code


def setting_of(args: argparse.Namespace) -> Setting:
    return Setting(
        namespace=args.namespace,
        account=args.service_account,
        volume=args.volume,
        storage_class=args.storage_class,
        pending=words.seconds(args.pending_timeout),
        lease=words.seconds(args.driver_lease),
    )
