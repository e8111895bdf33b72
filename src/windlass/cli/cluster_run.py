"""`windlass run --on kubernetes`: submit, then watch. The run does not need this process."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from windlass.cli import building, place
from windlass.cli.parts import fates_lines, new_plan
from windlass.cli.place import cluster_of
from windlass.cli.world import World, next_lines
from windlass.errors import FAILED, INTERRUPTED, OK, WindlassError
from windlass.export import board, serving
from windlass.export.objects import Setting
from windlass.plan import Plan
from windlass.rankenv import bracketed
from windlass.runs import words

if TYPE_CHECKING:
    from windlass.engines.kubernetes.mirror import Mirror
    from windlass.runs.values import RunState


def main(args: argparse.Namespace, world: World) -> int:
    from windlass.engines import secrets
    from windlass.engines.kubernetes.mirror import submitted

    if args.first and args.only:
        raise WindlassError("--from and --only exclude each other", "leave one of them out")
    if args.resume is not None:
        return _resumed(args, world)
    if args.first or args.only:
        raise WindlassError("--from and --only are for runs that go on", "name one: --resume RUN")
    plan = new_plan(args, world)
    assert plan is not None
    cluster = cluster_of(args, world)
    if args.build:
        plan = building.built_plan(plan, args, world)
    _warn(plan, world)
    copy = submitted(plan, setting_of(args), secrets.taken_along(plan, world.environ), cluster, world.home, world.say)
    run = copy.run
    commands = [f"windlass attach {run}", f"windlass logs -f {run}", f"windlass stop {run}"]
    if args.detach:
        world.print(run)
        told = f"{run} runs in the namespace {cluster.namespace} of the cluster"
        world.say(told)
        world.next(*commands)
        return OK
    world.say(f"submitted {run} to the namespace {cluster.namespace}")
    return watch(copy, world, commands, args.json, args.quiet)


def _warn(plan: Plan, world: World) -> None:
    for line in (*serving.warnings(plan), *board.warnings(plan)):
        world.say(f"warning: {line}")


def _resumed(args: argparse.Namespace, world: World) -> int:
    """Goes on with a run that has ended, or that does nothing but serve: with its own plan, or a new one of its job."""
    from windlass.engines import secrets

    given = args.on == "kubernetes"
    _, copy = place.find(argparse.Namespace(**{**vars(args), "on": args.on if given else None}), world, args.resume)
    args.on = "kubernetes"  # where the plan is for, also when the run was found without being told
    if copy is None:
        raise WindlassError(f"{args.resume} is a run of this machine", "leave out --on")
    plan = new_plan(args, world)
    if plan is not None and args.build:
        plan = building.built_plan(plan, args, world)
    values = secrets.taken_along(plan, world.environ) if plan is not None else {}
    fates = copy.go_on(plan, args.first, args.only, setting_of(args), values)
    if plan is not None:
        _warn(plan, world)
    if not args.json:
        for line in fates_lines(fates):
            world.say(line)
    commands = [f"windlass attach {copy.run}", f"windlass stop {copy.run}"]
    if args.detach:
        world.print(copy.run)
        world.say(f"{copy.run} goes on in the cluster")
        world.next(*commands)
        return OK
    return watch(copy, world, commands, args.json, args.quiet)


def watch(copy: Mirror, world: World, commands: list[str], json: bool, quiet: bool) -> int:
    """Until the run has ended, or does nothing but serve."""
    from windlass.cli.display import Display

    try:
        display = Display(
            world,
            copy.path,
            json=json,
            quiet=quiet,
            after=copy.after,
            resumed=copy.after,
            until_serving=True,
            rest=copy.wait,
        )
        copy.follow(logs=not quiet and not json, say=world.say)
        state = display.follow()
    except KeyboardInterrupt:
        world.say(f"{copy.run} goes on in the cluster")
        world.next(*commands)
        return INTERRUPTED
    if state.state == "serving":
        world.say(serves(copy, state))
        return OK
    return FAILED if state.code is None else state.code


def serves(copy: Mirror, state: RunState) -> str:
    """The last words about a run that serves: where from here, one answer, and how to end it."""
    from windlass.cli import summary
    from windlass.engines.kubernetes import address

    lines = [f"{copy.run} is serving"]
    for stage in state.stages:
        if stage.state != "serving" or not stage.serving:
            continue
        told = dict(stage.serving)
        try:
            found = address.find(copy.cluster, copy.run, stage.name)
        except WindlassError:
            found = address.Address("ClusterIP")
        if found.host:
            told |= {"url": found.url(), "grpc": f"{bracketed(found.host)}:{found.grpc}"}
            told |= {"page": f"{found.url()}/models/{told['model']}"} if "page" in told else {}
        lines += [f"  {stage.name}: {line}" for line in summary.serving(told)]
        if found.expose == "ClusterIP":
            lines.append(f"  {stage.name}: that is within the cluster; from here: windlass url {copy.run}")
        elif not found.host:
            lines.append(f"  {stage.name}: the {found.expose} has no address yet: windlass url {copy.run} --wait")
    commands = [f"windlass url {copy.run}", f"windlass logs -f {copy.run}", f"windlass stop {copy.run}"]
    return "\n".join([*lines, *next_lines(commands)])


def setting_of(args: argparse.Namespace) -> Setting:
    return Setting(
        namespace=args.namespace,
        account=args.service_account,
        volume=args.volume,
        storage_class=args.storage_class,
        pending=words.seconds(args.pending_timeout),
        lease=words.seconds(args.driver_lease),
    )
