"""Runs a job: checks it, starts its gang, shows it until it has ended.

The last lines say what to type next. Ctrl-C asks the ranks to stop (SIGTERM), waits for the
grace period of the stage, then kills; a second Ctrl-C kills at once. With --detach the run goes
on by itself: `longboat attach` shows it again.

On a cluster (--on kubernetes) the run is driven from inside the cluster: Ctrl-C ends the watching
only, a closed laptop changes nothing, and attach, logs, why and stop work from any machine. While
the run is still being submitted, Ctrl-C takes back what was made of it.

Exit codes: 0 done, 1 the job failed, 2 wrong use, 3 the gate was not met, 130 interrupted.
"""

from __future__ import annotations

import argparse

from longboat.cli.console import Console
from longboat.cli.engine_options import add_cluster_arguments, add_submit_arguments, context_of, submit_options
from longboat.cli.image_building import add_build_arguments
from longboat.cli.job_file import add_job_arguments
from longboat.cli.run_viewer import RunViewer
from longboat.cli.stage_selection import add_part_arguments, decision_lines, new_plan, stage_choice
from longboat.engines import registry
from longboat.engines.interface import Engine, RunHandle, RunRequest
from longboat.runtime.errors import FAILED, OK, LongboatError
from longboat.runtime.plan import Plan


def arguments(parser: argparse.ArgumentParser) -> None:
    add_job_arguments(parser)
    add_cluster_arguments(parser)
    add_submit_arguments(parser)
    parser.add_argument("-d", "--detach", action="store_true", help="return at once; the run goes on by itself")
    parser.add_argument("-q", "--quiet", action="store_true", help="leave out what the ranks print")
    parser.add_argument("--json", action="store_true", help="all events of the run as JSON on stdout, one per line")
    parser.add_argument(
        "-k", "--keep", action="store_true", help="keep servers up when everything else is done, until Ctrl-C or `stop`"
    )
    add_part_arguments(parser)
    parser.add_argument(
        "--build", action="store_true", help="build an image with code and packages, push it and run it: see `build`"
    )
    add_build_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    choice = stage_choice(args, keep=args.keep or args.detach)
    old = _run_to_resume(args, console)
    if old is not None:
        args.on = old.engine  # the plan is for where the run is, also when it was found without --on
    engine = registry.engine(args.on, context_of(args, console))
    plan = new_plan(args, console)
    if args.build:
        plan = _built(args, console, engine)
    for line in engine.warnings(plan) if plan is not None else ():
        console.say(f"warning: {line}")
    request = RunRequest(plan, choice, submit_options(args))
    if old is not None:
        run, decisions = engine.resume(old, request, console.say)
    else:
        run, decisions = engine.submit(request, console.say)
    if not args.json:
        for line in decision_lines(decisions):
            console.say(line)
    commands = [f"longboat attach {run.id}", f"longboat logs -f {run.id}", f"longboat stop {run.id}"]
    if args.detach:
        return _detached(run, console, commands)
    if run.outlives_cli:
        console.say(f"{'resumed' if old else 'submitted'} {run.id} {run.where}")
    return run.attend(RunViewer(run, console, args.json, args.quiet, commands), console.say)


def _run_to_resume(args: argparse.Namespace, console: Console) -> RunHandle | None:
    """--on has a default, which does not say where to look for a run."""
    if args.resume is None:
        return None
    on = None if args.on == registry.DEFAULT else args.on
    return registry.find(on, context_of(args, console), args.resume)


def _built(args: argparse.Namespace, console: Console, engine: Engine) -> Plan | None:
    from longboat.cli import image_building

    if not engine.remote:
        raise LongboatError("ranks on this machine need no image", "leave out --build, or say --on kubernetes")
    plan = new_plan(args, console)
    return image_building.built_plan(plan, args, console) if plan is not None else None


def _detached(run: RunHandle, console: Console, commands: list[str]) -> int:
    if not run.detach(fork=True):
        console.say(f"error: {run.id} did not start\n\nhint: longboat why {run.id}")
        return FAILED
    console.print(run.id)
    console.say(f"{run.id} runs {run.where if run.outlives_cli else 'in the background'}")
    console.next(*commands)
    return OK
