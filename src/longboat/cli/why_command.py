"""Says why a run ended as it did: what failed first and where, the evidence, what fell because
of it, what had failed before, and what to do next.

RUN is a run's id, the beginning of one, or a job's name; without it, the newest run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from longboat.cli import engine_options
from longboat.cli.console import Console, next_lines
from longboat.runs.explanation import Explanation, explain
from longboat.runs.run_state import as_json
from longboat.runtime.errors import OK

MANY = 10


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run (the newest if not given)")
    parser.add_argument("--json", action="store_true", help="the explanation as JSON")
    engine_options.add_place_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    state = engine_options.find(args, console, args.run).state(explain=True)
    explanation = explain(state, time.time())
    if args.json:
        console.print_json({**as_json(explanation), "cause": as_json(state.cause)})
    else:
        console.print(text(explanation))
    return OK


def text(found: Explanation) -> str:
    lines = [found.headline]
    facts = [fact for fact in found.facts if fact not in found.headline]
    if found.where or found.when or facts:
        lines.append("")
    lines += [f"where: {found.where}"] if found.where else []
    lines += [f"when: {found.when}"] if found.when else []
    lines += [f"  {fact}" for fact in facts]
    lines += _part("evidence", found.evidence)
    lines += _part("what the ranks were doing", found.hung)
    lines += _part("its last lines", [f"| {line}" for line in found.lines])
    if found.consequences:
        names = list(found.consequences)
        more = f" and {len(names) - MANY} more" if len(names) > MANY else ""
        lines += ["", f"fell because of it: {', '.join(names[:MANY])}{more}"]
    lines += _part("failed before" if found.where or found.when else "failed on the way", _newest(found.earlier))
    lines += _part("warnings", _newest(found.notes))
    if found.advice:
        lines += ["", f"hint: {found.advice}"]
    return "\n".join(lines + next_lines(found.next))


def _part(title: str, lines: Sequence[str]) -> list[str]:
    return ["", f"{title}:", *(f"  {line}" for line in lines)] if lines else []


def _newest(lines: Sequence[str]) -> list[str]:
    left = len(lines) - MANY
    return [*([f"({left} earlier ones left out)"] if left > 0 else []), *lines[-MANY:]]
