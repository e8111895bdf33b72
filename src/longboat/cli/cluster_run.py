"""`longboat run --on kubernetes`: submit, then watch. The run does not need this process."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from longboat.cli import image_building, run_location
from longboat.cli.console import World, next_lines
from longboat.cli.run_location import cluster_of
from longboat.cli.stage_selection import fates_lines, new_plan
from longboat.manifests import model_serving, tensorboard_pod
from longboat.manifests.run_objects import Setting
from longboat.runs import formatting
from longboat.runtime.errors import FAILED, INTERRUPTED, OK, LongboatError
from longboat.runtime.plan import Plan
from longboat.runtime.rank_env import bracketed

if TYPE_CHECKING:
    from longboat.engines.kubernetes.replica import Mirror
    from longboat.runs.run_state import RunState


def main(args: argparse.Namespace, world: World) -> int:
    from longboat.engines import secret_values
    from longboat.engines.kubernetes.replica import submitted

    if args.first and args.only:
        raise LongboatError("--from and --only exclude each other", "leave one of them out")
    if args.resume is not None:
        return _resumed(args, world)
    if args.first or args.only:
        raise LongboatError("--from and --only are for runs that go on", "name one: --resume RUN")
    plan = new_plan(args, world)
    assert plan is not None
    cluster = cluster_of(args, world)
    if args.build:
        plan = image_building.built_plan(plan, args, world)
    _warn(plan, world)
    copy = submitted(
        plan, setting_of(args), secret_values.taken_along(plan, world.environ), cluster, world.home, world.say
    )
    run = copy.run
    commands = [f"longboat attach {run}", f"longboat logs -f {run}", f"longboat stop {run}"]
    if args.detach:
        world.print(run)
        told = f"{run} runs in the namespace {cluster.namespace} of the cluster"
        world.say(told)
        world.next(*commands)
        return OK
    world.say(f"submitted {run} to the namespace {cluster.namespace}")
    return watch(copy, world, commands, args.json, args.quiet)


def _warn(plan: Plan, world: World) -> None:
    for line in (*model_serving.warnings(plan), *tensorboard_pod.warnings(plan)):
        world.say(f"warning: {line}")


def _resumed(args: argparse.Namespace, world: World) -> int:
    """Goes on with a run that has ended, or that does nothing but serve: with its own plan, or a new one of its job."""
    from longboat.engines import secret_values

    given = args.on == "kubernetes"
    _, copy = run_location.find(
        argparse.Namespace(**{**vars(args), "on": args.on if given else None}), world, args.resume
    )
    args.on = "kubernetes"  # where the plan is for, also when the run was found without being told
    if copy is None:
        raise LongboatError(f"{args.resume} is a run of this machine", "leave out --on")
    plan = new_plan(args, world)
    if plan is not None and args.build:
        plan = image_building.built_plan(plan, args, world)
    values = secret_values.taken_along(plan, world.environ) if plan is not None else {}
    fates = copy.go_on(plan, args.first, args.only, setting_of(args), values)
    if plan is not None:
        _warn(plan, world)
    if not args.json:
        for line in fates_lines(fates):
            world.say(line)
    commands = [f"longboat attach {copy.run}", f"longboat stop {copy.run}"]
    if args.detach:
        world.print(copy.run)
        world.say(f"{copy.run} goes on in the cluster")
        world.next(*commands)
        return OK
    return watch(copy, world, commands, args.json, args.quiet)


def watch(copy: Mirror, world: World, commands: list[str], json: bool, quiet: bool) -> int:
    """Until the run has ended, or does nothing but serve."""
    from longboat.cli.display import Display

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
    from longboat.cli import run_summary
    from longboat.engines.kubernetes import service_address

    lines = [f"{copy.run} is serving"]
    for stage in state.stages:
        if stage.state != "serving" or not stage.serving:
            continue
        told = dict(stage.serving)
        try:
            found = service_address.find(copy.cluster, copy.run, stage.name)
        except LongboatError:
            found = service_address.Address("ClusterIP")
        if found.host:
            told |= {"url": found.url(), "grpc": f"{bracketed(found.host)}:{found.grpc}"}
            told |= {"page": f"{found.url()}/models/{told['model']}"} if "page" in told else {}
        lines += [f"  {stage.name}: {line}" for line in run_summary.serving(told)]
        if found.expose == "ClusterIP":
            lines.append(f"  {stage.name}: that is within the cluster; from here: longboat url {copy.run}")
        elif not found.host:
            lines.append(f"  {stage.name}: the {found.expose} has no address yet: longboat url {copy.run} --wait")
    commands = [f"longboat url {copy.run}", f"longboat logs -f {copy.run}", f"longboat stop {copy.run}"]
    return "\n".join([*lines, *next_lines(commands)])


def setting_of(args: argparse.Namespace) -> Setting:
    return Setting(
        namespace=args.namespace,
        account=args.service_account,
        volume=args.volume,
        storage_class=args.storage_class,
        pending=formatting.seconds(args.pending_timeout),
        lease=formatting.seconds(args.driver_lease),
    )
