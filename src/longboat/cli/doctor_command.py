"""Check what this machine or a cluster can do, what is missing, and how to fix it.

Use it before the first run, and when a run cannot start. With a job FILE it also checks what that job needs: programs
and scripts, mounts, secrets, requirements, mpirun, memory and GPUs. Exits with 1 if the job needs something that is
missing.

  longboat doctor
  longboat doctor job.yaml
  longboat doctor job.yaml --on kubernetes -n training

With --on kubernetes it checks the cluster, your permissions in the namespace, and what is free on its nodes. With a job
FILE it also checks that the namespace admits its pods, that its claims, secrets and accounts exist, and, with a
temporary pod, that its images can be pulled and its user can write to its mounts. Exits with 1 if a run cannot start.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from longboat.cli import engine_options
from longboat.cli.console import Console
from longboat.cli.job_file import add_job_arguments, file_words, load_job
from longboat.engines import registry
from longboat.engines.interface import CanDiagnose, Finding, able
from longboat.runtime.errors import FAILED, OK
from longboat.runtime.light_dataclasses import asdict


def arguments(parser: argparse.ArgumentParser) -> None:
    add_job_arguments(parser)
    # Unlike elsewhere no FILE means no job, not the one in the current directory.
    file = next(action for action in parser._actions if action.dest == "file")  # noqa: SLF001
    file.default, file.help = None, "job file, or a directory with job.yaml, to check too"
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument(
        "--no-probe", action="store_true", help="on a cluster: do not start a pod that tries images and mounts"
    )
    engine_options.add_cluster_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    engine = engine_options.engine_of(args, console)
    plan = None if args.file is None else load_job(args, console).plan()
    diagnosis = able(engine, CanDiagnose, "doctor").doctor(plan, probe=not args.no_probe)
    code = OK if diagnosis.ok else FAILED
    if args.json:
        key = "cluster" if engine.remote else "machine"
        here, job = ([asdict(finding) for finding in findings] for findings in (diagnosis.place, diagnosis.job))
        console.print_json({key: here, "job": job})
        return code
    console.print(_table(diagnosis.title, diagnosis.place))
    if plan is not None:
        console.print("\n" + _table(f"JOB {plan.name}", diagnosis.job))
    shown = diagnosis.job if diagnosis.job and not engine.remote else [*diagnosis.place, *diagnosis.job]
    if fixes := list(dict.fromkeys((f.about, f.fix) for f in shown if f.fix and f.state != "ok")):
        title = "To fix it:" if plan is not None else "To get what is missing:"
        console.say("\n".join(["", title, *(f"  {about}: {fix}" for about, fix in fixes)]))
    if plan is not None and code == OK:
        place = f" --on {args.on}" if args.on != registry.DEFAULT else ""
        space = f" -n {args.namespace}" if args.namespace else ""
        console.next(f"longboat run{file_words(args)}{place}{space}")
    return code


def _table(title: str, findings: Sequence[Finding]) -> str:
    from longboat.cli import table

    return table.render((title, "", ""), [(f.about, f.state, f.detail) for f in findings])
