"""Run a job: check it, start its gang, and show it until it ends.

  longboat run job.yaml --set STEPS=200
  longboat run --detach                       job.yaml of this directory; `longboat attach` shows the run
  longboat run job.yaml --on kubernetes
  longboat run --resume mnist                 continue a run that failed or was stopped

Ctrl-C sends SIGTERM to the ranks, waits for the grace period of the stage, then kills them; a second Ctrl-C kills at
once. The last lines show what to type next.

On a cluster the driver runs inside the cluster: Ctrl-C stops watching, not the run; you can close your laptop, and use
attach, logs, why and stop from any machine. If you press Ctrl-C while the run is still being submitted, its objects
are deleted.

With -v, or LONGBOAT_LOG=debug (info, warning, error), the driver and the agents log what they do, for a bug report:
`longboat cat RUN:driver.log`, and RUN:agents/STAGE/ROLE-RANK.log; in a cluster, agents log to `kubectl logs POD`.

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
    parser.add_argument(
        "-d", "--detach", action="store_true", help="return at once; the run continues in the background"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="hide the ranks' output")
    parser.add_argument("-v", "--verbose", action="store_true", help="write debug logs, as with LONGBOAT_LOG=debug")
    parser.add_argument("--json", action="store_true", help="print all events as JSON, one per line")
    parser.add_argument(
        "-k", "--keep", action="store_true", help="keep serving when all other stages are done, until Ctrl-C or `stop`"
    )
    add_part_arguments(parser)
    parser.add_argument(
        "--build", action="store_true", help="build an image with code and packages, push it and run it (see `build`)"
    )
    add_build_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    choice = stage_choice(args, keep=args.keep or args.detach)
    old = _run_to_resume(args, console)
    if old is not None:
        args.on = old.engine  # plan for the engine of the run, even if it was found without --on
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
    """The run of --resume, on any engine unless --on names one that is not the default."""
    if args.resume is None:
        return None
    on = None if args.on == registry.DEFAULT else args.on
    return registry.find(on, context_of(args, console), args.resume)


def _built(args: argparse.Namespace, console: Console, engine: Engine) -> Plan | None:
    from longboat.cli import image_building

    if not engine.remote:
        raise LongboatError("ranks on this machine need no image", "omit --build, or add --on kubernetes")
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
