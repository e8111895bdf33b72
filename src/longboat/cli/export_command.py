"""Writes what a run would submit as one YAML file: to review, apply and delete by hand.

    longboat export job.yaml --to yaml -o job-run.yaml
    kubectl apply --server-side -f job-run.yaml     (the run begins; `longboat status --on kubernetes` finds it)
    kubectl delete -f job-run.yaml                  (and all that it made is gone)

The objects are the very ones that `longboat run --on kubernetes` submits. The token that the
run's processes prove themselves with is made in the cluster; secrets that come from this machine
are not written: the file says how to make them.
"""

from __future__ import annotations

import argparse
import re

from longboat.cli.console import Console
from longboat.cli.engine_options import add_cluster_arguments, add_submit_arguments, submit_options
from longboat.cli.job_file import add_job_arguments, load_job
from longboat.runtime.errors import OK, LongboatError

RUN_ID = r"[a-z]([a-z0-9-]{,44}[a-z0-9])?"
"""What a cluster takes as the beginning of the names of all objects."""


def arguments(parser: argparse.ArgumentParser) -> None:
    add_job_arguments(parser)
    parser.set_defaults(on="kubernetes")
    parser.add_argument("--to", choices=("yaml",), default="yaml", help="the form: yaml")
    parser.add_argument("-o", "--output", metavar="PATH", help="write here instead of to stdout")
    parser.add_argument("--run", metavar="ID", help="the id of the run (a new one)")
    add_cluster_arguments(parser)
    add_submit_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    from longboat.manifests import payload, run_objects, volumes, yaml_text
    from longboat.runs.store import fresh_id

    plan = load_job(args, console).plan()
    run = args.run or fresh_id(plan.name)
    if not re.fullmatch(RUN_ID, run):
        raise LongboatError(
            f"--run {run!r} cannot be a run's id",
            f"lower-case letters, digits and dashes, 46 at most, for example {fresh_id(plan.name)}",
        )
    options = run_objects.submit_options(args.namespace, submit_options(args))
    packed = payload.load(plan)
    kept = volumes.objects(plan, run, args.namespace)
    made = [*run_objects.in_namespace(kept, args.namespace), *run_objects.objects(plan, run, packed, options)]
    written = yaml_text.yaml_of(made, run_objects.head(plan, run, packed, args.namespace))
    if args.output is None:
        console.print(written.rstrip("\n"))
        return OK
    try:
        with open(args.output, "w", encoding="utf-8") as file:
            file.write(written)
    except OSError as error:
        raise LongboatError(f"{args.output} cannot be written: {error.strerror}") from None
    console.say(f"{len(made)} objects of the run {run} are in {args.output}")
    console.next(f"kubectl apply --server-side -f {args.output}")
    return OK
