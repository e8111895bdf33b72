"""Show what a run of a job file would do, without doing it.

What is shown is exactly what `longboat run` runs; --json prints the whole of it.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from longboat.cli.console import World
from longboat.cli.job_file import add_job_arguments, file_words
from longboat.cli.stage_selection import add_part_arguments, fates_lines, new_plan, part_words, wish
from longboat.runtime.errors import OK

if TYPE_CHECKING:
    from longboat.runs.stage_reuse import Fate


def arguments(parser: argparse.ArgumentParser) -> None:
    add_job_arguments(parser)
    add_part_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


def main(args: argparse.Namespace, world: World) -> int:
    given = new_plan(args, world)
    fates: tuple[Fate, ...] = ()
    if args.resume is not None:
        from longboat.engines.local import opening

        resumed = opening.resumed_plan(args.resume, world.home, world.environ, wish(args), given)
        plan, fates = resumed.plan, resumed.fates
    else:
        assert given is not None
        plan = given
        if args.first or args.only:
            from longboat.runs.stage_reuse import decide

            fates = decide(plan, (), {}, args.first, args.only)
    if args.json:
        from longboat.runtime.plan import to_json

        world.print(to_json(plan))
        return OK
    from longboat.cli.plan_text import plan_text

    world.print(plan_text(plan, world.columns))
    if fates:
        world.print("\n".join(["", *fates_lines(fates)]))
    world.next(f"longboat run{file_words(args)}{_options(args)}", f"longboat params{file_words(args)}")
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
