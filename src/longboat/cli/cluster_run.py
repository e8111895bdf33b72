"""`longboat run --on kubernetes`: submit, then watch. The run does not need this process."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from longboat.cli import image_building, run_location
from longboat.cli.console import Console, next_lines
from longboat.cli.run_location import cluster_of
from longboat.cli.stage_selection import fates_lines, new_plan
from longboat.manifests import model_serving, tensorboard_pod
from longboat.manifests.run_objects import SubmitOptions
from longboat.runs import formatting
from longboat.runtime.errors import FAILED, INTERRUPTED, OK, LongboatError
from longboat.runtime.plan import Plan
from longboat.runtime.rank_env import bracketed

if TYPE_CHECKING:
    from longboat.engines.kubernetes.replica import RunReplica
    from longboat.runs.run_state import RunState


def main(args: argparse.Namespace, console: Console) -> int:
    from longboat.engines import secret_values
    from longboat.engines.kubernetes.replica import submitted

    if args.first and args.only:
        raise LongboatError("--from and --only exclude each other", "leave one of them out")
    if args.resume is not None:
        return _resumed(args, console)
    if args.first or args.only:
        raise LongboatError("--from and --only are for runs that go on", "name one: --resume RUN")
    plan = new_plan(args, console)
    assert plan is not None
    cluster = cluster_of(args, console)
    if args.build:
        plan = image_building.built_plan(plan, args, console)
    _warn(plan, console)
    copy = submitted(
        plan, setting_of(args), secret_values.taken_along(plan, console.environ), cluster, console.home, console.say
    )
    run = copy.run
    commands = [f"longboat attach {run}", f"longboat logs -f {run}", f"longboat stop {run}"]
    if args.detach:
        console.print(run)
        told = f"{run} runs in the namespace {cluster.namespace} of the cluster"
        console.say(told)
        console.next(*commands)
        return OK
    console.say(f"submitted {run} to the namespace {cluster.namespace}")
    return watch(copy, console, commands, args.json, args.quiet)


def _warn(plan: Plan, console: Console) -> None:
    for line in (*model_serving.warnings(plan), *tensorboard_pod.warnings(plan)):
        console.say(f"warning: {line}")


def _resumed(args: argparse.Namespace, console: Console) -> int:
    """Goes on with a run that has ended, or that does nothing but serve: with its own plan, or a new one of its job."""
    from longboat.engines import secret_values

    given = args.on == "kubernetes"
    _, copy = run_location.find(
        argparse.Namespace(**{**vars(args), "on": args.on if given else None}), console, args.resume
    )
    args.on = "kubernetes"  # where the plan is for, also when the run was found without being told
    if copy is None:
        raise LongboatError(f"{args.resume} is a run of this machine", "leave out --on")
    plan = new_plan(args, console)
    if plan is not None and args.build:
        plan = image_building.built_plan(plan, args, console)
    values = secret_values.taken_along(plan, console.environ) if plan is not None else {}
    fates = copy.go_on(plan, args.first, args.only, setting_of(args), values)
    if plan is not None:
        _warn(plan, console)
    if not args.json:
        for line in fates_lines(fates):
            console.say(line)
    commands = [f"longboat attach {copy.run}", f"longboat stop {copy.run}"]
    if args.detach:
        console.print(copy.run)
        console.say(f"{copy.run} goes on in the cluster")
        console.next(*commands)
        return OK
    return watch(copy, console, commands, args.json, args.quiet)


def watch(copy: RunReplica, console: Console, commands: list[str], json: bool, quiet: bool) -> int:
    """Until the run has ended, or does nothing but serve."""
    from longboat.cli.display import Display

    try:
        display = Display(
            console,
            copy.path,
            json=json,
            quiet=quiet,
            after=copy.after,
            resumed=copy.after,
            until_serving=True,
            rest=copy.wait,
        )
        copy.follow(logs=not quiet and not json, say=console.say)
        state = display.follow()
    except KeyboardInterrupt:
        console.say(f"{copy.run} goes on in the cluster")
        console.next(*commands)
        return INTERRUPTED
    if state.state == "serving":
        console.say(serves(copy, state))
        return OK
    return FAILED if state.code is None else state.code


def serves(copy: RunReplica, state: RunState) -> str:
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
            found = service_address.ServiceAddress("ClusterIP")
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


def setting_of(args: argparse.Namespace) -> SubmitOptions:
    return SubmitOptions(
        namespace=args.namespace,
        account=args.service_account,
        volume=args.volume,
        storage_class=args.storage_class,
        pending=formatting.seconds(args.pending_timeout),
        lease=formatting.seconds(args.driver_lease),
    )
