"""Which stages of a job run: --resume, --from and --only, for `run` and `plan`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from longboat.cli.console import Console
from longboat.cli.job_file import load_job
from longboat.runtime.errors import LongboatError

if TYPE_CHECKING:
    from longboat.runs.stage_reuse import StageChoice, StageDecision
    from longboat.runtime.plan import Plan


def add_part_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--resume",
        metavar="RUN",
        help="continue a run; a stage that passed is reused unless its code or input changed. "
        "Add FILE or --set to continue with a changed plan",
    )
    parser.add_argument("--from", metavar="STAGE", dest="first", help="run this stage and all after it, reuse the rest")
    parser.add_argument("--only", metavar="STAGE", help="run this stage alone")


def stage_choice(args: argparse.Namespace, keep: bool = False) -> StageChoice:
    from longboat.runs.stage_reuse import StageChoice

    if args.first and args.only:
        raise LongboatError("--from and --only exclude each other", "use one of them")
    return StageChoice(args.first, args.only, keep)


def new_plan(args: argparse.Namespace, console: Console) -> Plan | None:
    """The plan of the job file; None if a run is resumed with its own plan."""
    given = args.file != "." or args.sets or args.preset or args.env_files
    return load_job(args, console).plan() if given or args.resume is None else None


def decision_lines(decisions: Iterable[StageDecision]) -> list[str]:
    """A line for each stage; none if all stages simply run."""
    decisions = list(decisions)
    if all(decision.does == "runs" and not decision.why for decision in decisions):
        return []
    width = max(len(decision.stage) for decision in decisions)
    return [f"{each.stage:<{width}}  {each.does}{f': {each.why}' if each.why else ''}" for each in decisions]


def part_words(args: argparse.Namespace) -> list[str]:
    """The options as arguments of the next command."""
    options = (("--resume", args.resume), ("--from", args.first), ("--only", args.only))
    return [word for option, value in options if value for word in (option, value)]
