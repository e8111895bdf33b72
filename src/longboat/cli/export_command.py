"""Write the Kubernetes objects of a run as one YAML file.

Use it to review what would be submitted, or to apply and delete it yourself.

    longboat export job.yaml --to yaml -o job-run.yaml
    kubectl apply --server-side -f job-run.yaml     (starts the run; `longboat status --on kubernetes` finds it)
    kubectl delete -f job-run.yaml                  (deletes the run and everything it created)

The objects are the same that `longboat run --on kubernetes` submits. The token with which the run's processes
authenticate is created in the cluster. Secrets from this machine are not written: the file says how to create them.
"""

from __future__ import annotations

import argparse
import re

from longboat.cli.console import Console
from longboat.cli.engine_options import add_cluster_arguments, add_submit_arguments, submit_options
from longboat.cli.job_file import add_job_arguments, load_job
from longboat.runtime.errors import OK, LongboatError

RUN_ID = r"[a-z]([a-z0-9-]{,44}[a-z0-9])?"
"""Run ids that are valid at the start of Kubernetes object names."""


def arguments(parser: argparse.ArgumentParser) -> None:
    add_job_arguments(parser)
    parser.set_defaults(on="kubernetes")
    parser.add_argument("--to", choices=("yaml",), default="yaml", help="format: yaml")
    parser.add_argument("-o", "--output", metavar="PATH", help="file to write (default: stdout)")
    parser.add_argument("--run", metavar="ID", help="id of the run (default: a new one)")
    add_cluster_arguments(parser)
    add_submit_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    from longboat.manifests import payload, run_objects, volumes, yaml_text
    from longboat.runs.store import fresh_id

    plan = load_job(args, console).plan()
    run = args.run or fresh_id(plan.name)
    if not re.fullmatch(RUN_ID, run):
        raise LongboatError(
            f"--run {run!r} is not a valid run id",
            f"use at most 46 lower-case letters, digits and dashes, for example {fresh_id(plan.name)}",
        )
    options = run_objects.submit_options(args.namespace, submit_options(args), console.environ)
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
        raise LongboatError(f"cannot write {args.output}: {error.strerror}") from None
    console.say(f"wrote {len(made)} objects of run {run} to {args.output}")
    console.next(f"kubectl apply --server-side -f {args.output}")
    return OK
