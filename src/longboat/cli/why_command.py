"""Explain why a run ended: the first failure, the evidence, what stopped because of it, and what to do next.

Use it after a run failed, was stopped, or missed a gate. It also lists earlier failures of the run.

  longboat why
  longboat why mnist --json

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
    parser.add_argument("--json", action="store_true", help="print the explanation as JSON")
    engine_options.add_place_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    state = engine_options.find(args, console, args.run).state(explain=True)
    explanation = explain(state, time.time())
    if args.json:
        console.print_json({**as_json(explanation), "cause": as_json(state.cause)})
    else:
        console.print(text(explanation))
    return OK


def text(explanation: Explanation) -> str:
    lines = [explanation.headline]
    facts = [fact for fact in explanation.facts if fact not in explanation.headline]
    if explanation.where or explanation.when or facts:
        lines.append("")
    lines += [f"where: {explanation.where}"] if explanation.where else []
    lines += [f"when: {explanation.when}"] if explanation.when else []
    lines += [f"  {fact}" for fact in facts]
    lines += _part("evidence", explanation.evidence)
    lines += _part("what the ranks were doing", explanation.hung)
    lines += _part("its last lines", [f"| {line}" for line in explanation.lines])
    if explanation.consequences:
        names = list(explanation.consequences)
        more = f" and {len(names) - MANY} more" if len(names) > MANY else ""
        lines += ["", f"stopped because of it: {', '.join(names[:MANY])}{more}"]
    lines += _part(
        "failed before" if explanation.where or explanation.when else "failed on the way", _newest(explanation.earlier)
    )
    lines += _part("warnings", _newest(explanation.notes))
    if explanation.advice:
        lines += ["", f"hint: {explanation.advice}"]
    return "\n".join(lines + next_lines(explanation.next))


def _part(title: str, lines: Sequence[str]) -> list[str]:
    return ["", f"{title}:", *(f"  {line}" for line in lines)] if lines else []


def _newest(lines: Sequence[str]) -> list[str]:
    left = len(lines) - MANY
    return [*([f"({left} earlier ones not shown)"] if left > 0 else []), *lines[-MANY:]]
