"""Say what this machine can do, what is missing, and the command that mends it.

With a job FILE also check what that job needs: its programs and scripts, mounts, secrets,
requirements, mpirun, memory and GPUs. Exits with 1 if something that the job needs is missing.

With --on kubernetes: what the cluster and your rights in the namespace allow, and what is free on
its nodes. With a job FILE also whether the namespace lets its pods run, whether its claims, secrets
and accounts are there, and, by a pod that comes and goes, whether its images can be pulled and its
mounts be written to by its user. Exits with 1 if a run could not be made there.
"""

from __future__ import annotations

import argparse

from longboat.cli import run_location
from longboat.cli.console import Console
from longboat.cli.job_file import add_job_arguments, file_words, load_job
from longboat.runtime.errors import FAILED, OK


def arguments(parser: argparse.ArgumentParser) -> None:
    add_job_arguments(parser)
    # Unlike elsewhere no FILE means no job, not the one in the current directory.
    file = next(action for action in parser._actions if action.dest == "file")  # noqa: SLF001
    file.default, file.help = None, "a job file, or a directory with job.yaml, whose needs are checked too"
    parser.add_argument("--json", action="store_true", help="the findings as JSON")
    parser.add_argument(
        "--no-probe", action="store_true", help="on a cluster: make no pod that tries images and mounts"
    )
    run_location.add_cluster_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    from longboat import doctor

    if args.on == "kubernetes":
        return _cluster(args, console)
    plan = None if args.file is None else load_job(args, console).plan()
    machine = doctor.of_machine(console.home, console.environ)
    job = [] if plan is None else doctor.of_job(plan, console.environ)
    # Without a home there is no run at all; the rest of the machine matters only to a job that asks for it.
    needed = [finding for finding in machine if finding.about == "home"] + job
    code = FAILED if plan is not None and any(f.state == doctor.MISSING for f in needed) else OK
    if args.json:
        from dataclasses import asdict

        console.print_json({"machine": [asdict(f) for f in machine], "job": [asdict(f) for f in job]})
        return code
    from longboat.cli import table

    def rows(findings: list[doctor.Finding]) -> list[tuple[str, str, str]]:
        return [(f.about, f.state, f.detail) for f in findings]

    console.print(table.render(("THIS MACHINE", "", ""), rows(machine)))
    if plan is not None:
        console.print("\n" + table.render((f"JOB {plan.name}", "", ""), rows(job)))
    fixes = list(dict.fromkeys((f.about, f.fix) for f in (job or machine) if f.fix and f.state != doctor.OK))
    if fixes:
        title = "To mend it:" if plan is not None else "To get what is not there:"
        console.say(f"\n{title}\n" + table.render((), [(about, fix) for about, fix in fixes], indent="  "))
    if plan is not None and code == OK:
        console.next(f"longboat run{file_words(args)}")
    return code


def _cluster(args: argparse.Namespace, console: Console) -> int:
    from longboat import doctor
    from longboat.cli import table

    cluster = run_location.cluster_of(args, console)
    plan = None if args.file is None else load_job(args, console).plan()
    found = doctor.of_cluster(cluster)
    there = all(finding.state != doctor.MISSING for finding in found if finding.about in ("cluster", "namespace"))
    job = doctor.of_job_there(cluster, plan, console.environ, not args.no_probe) if plan is not None and there else []
    code = FAILED if any(finding.state == doctor.MISSING for finding in [*found, *job]) else OK
    if args.json:
        from dataclasses import asdict

        told = {
            "cluster": [asdict(f) for f in found],
            **({"job": [asdict(f) for f in job]} if plan is not None else {}),
        }
        console.print_json(told)
        return code
    console.print(table.render(("THE CLUSTER", "", ""), [(f.about, f.state, f.detail) for f in found]))
    if plan is not None:
        console.print("\n" + table.render((f"JOB {plan.name}", "", ""), [(f.about, f.state, f.detail) for f in job]))
    for finding in [*found, *job]:
        if finding.fix and finding.state != doctor.OK:
            console.say(f"\n{finding.about}: {finding.fix}")
    if plan is not None and code == OK:
        space = f" -n {args.namespace}" if args.namespace else ""
        console.next(f"longboat run{file_words(args)} --on kubernetes{space}")
    return code
