"""Show what a run of a job file would do, without doing it.

What is shown is exactly what `longboat run` runs; --json prints the whole of it.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from longboat.cli.console import Console
from longboat.cli.job_file import add_job_arguments, file_words
from longboat.cli.stage_selection import add_part_arguments, fates_lines, new_plan, part_words, wish
from longboat.runtime.errors import OK

if TYPE_CHECKING:
    from longboat.runs.stage_reuse import StageDecision


def arguments(parser: argparse.ArgumentParser) -> None:
    add_job_arguments(parser)
    add_part_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


def main(args: argparse.Namespace, console: Console) -> int:
    given = new_plan(args, console)
    fates: tuple[StageDecision, ...] = ()
    if args.resume is not None:
        from longboat.engines.local import opening

        resumed = opening.resumed_plan(args.resume, console.home, console.environ, wish(args), given)
        plan, fates = resumed.plan, resumed.fates
    else:
        assert given is not None
        plan = given
        if args.first or args.only:
            from longboat.runs.stage_reuse import decide

            fates = decide(plan, (), {}, args.first, args.only)
    if args.json:
        from longboat.runtime.plan import to_json

        console.print(to_json(plan))
        return OK
    from longboat.cli.plan_text import plan_text

    console.print(plan_text(plan, console.columns))
    if fates:
        console.print("\n".join(["", *fates_lines(fates)]))
    console.next(f"longboat run{file_words(args)}{_options(args)}", f"longboat params{file_words(args)}")
    return OK


def _options(args: argparse.Namespace) -> str:
    """The options again, so that the next command runs what was shown."""
    import shlex

    words = [word for text in args.sets for word in ("--set", text)]
    words += ["--preset", args.preset] if args.preset else []
    words += [word for path in args.env_files for word in ("--env-file", path)]
    words += ["--on", args.on] if args.on != "local" else []
    words += part_words(args)
    return "".join(f" {shlex.quote(word)}" for word in words)
