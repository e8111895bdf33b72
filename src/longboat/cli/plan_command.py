"""Show what a run of a job file would do, without running it.

Use it to check params, commands, mounts and environment: `longboat run` runs exactly this. --json prints all of it.

  longboat plan job.yaml --set STEPS=200
  longboat plan --resume mnist          which stages would run again
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from longboat.cli.console import Console
from longboat.cli.job_file import add_job_arguments, file_words
from longboat.cli.stage_selection import add_part_arguments, decision_lines, new_plan, part_words, stage_choice
from longboat.engines import registry
from longboat.engines.interface import EngineContext, RunRequest
from longboat.runtime.errors import OK

if TYPE_CHECKING:
    from longboat.runs.stage_reuse import StageDecision


def arguments(parser: argparse.ArgumentParser) -> None:
    add_job_arguments(parser)
    add_part_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


def main(args: argparse.Namespace, console: Console) -> int:
    context, choice = EngineContext(console.home, console.environ), stage_choice(args)
    decisions: Sequence[StageDecision] = ()
    if args.resume is not None:
        run = registry.find(None if args.on == registry.DEFAULT else args.on, context, args.resume)
        args.on = run.engine
        request = RunRequest(new_plan(args, console), choice)
        resumption = registry.engine(run.engine, context).resumption(run, request)
        plan, decisions = resumption.plan, resumption.decisions
    else:
        loaded = new_plan(args, console)
        assert loaded is not None
        plan = loaded
        if args.first or args.only:
            from longboat.runs.stage_reuse import decide

            decisions = decide(plan, (), {}, args.first, args.only)
    if args.json:
        from longboat.runtime.plan import to_json

        console.print(to_json(plan))
        return OK
    from longboat.cli.plan_text import plan_text

    # The default engine has no warnings, and is not imported just to say so: `plan` is fast.
    warnings = () if plan.engine == registry.DEFAULT else registry.engine(plan.engine, context).warnings(plan)
    console.print(plan_text(plan, console.columns, warnings))
    if decisions:
        console.print("\n".join(["", *decision_lines(decisions)]))
    console.next(f"longboat run{file_words(args)}{_options(args)}", f"longboat params{file_words(args)}")
    return OK


def _options(args: argparse.Namespace) -> str:
    """The options again, so that the next command runs what was shown."""
    import shlex

    options = [word for text in args.sets for word in ("--set", text)]
    options += ["--preset", args.preset] if args.preset else []
    options += [word for path in args.env_files for word in ("--env-file", path)]
    options += ["--on", args.on] if args.on != registry.DEFAULT else []
    options += part_words(args)
    return "".join(f" {shlex.quote(word)}" for word in options)
