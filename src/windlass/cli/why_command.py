"""Says why a run ended as it did: what failed first and where, the evidence, what fell because
of it, what had failed before, and what to do next.

RUN is a run's id, the beginning of one, or a job's name; without it, the newest run.
"""

from __future__ import annotations

import argparse
import json
import time

from windlass.cli.summary import next_lines
from windlass.cli.world import World
from windlass.errors import OK
from windlass.runs.state import load
from windlass.runs.store import Store
from windlass.runs.values import as_json
from windlass.runs.why import Explanation, explain

MANY = 10


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run (the newest if not given)")
    parser.add_argument("--json", action="store_true", help="the explanation as JSON")


def main(args: argparse.Namespace, world: World) -> int:
    run = Store(world.home).find(args.run)
    state = load(run)
    explanation = explain(state, time.time())
    if args.json:
        world.print(json.dumps({**as_json(explanation), "cause": as_json(state.cause)}, indent=2, ensure_ascii=False))
    else:
        world.print(text(explanation))
    return OK


def text(found: Explanation) -> str:
    lines = [found.headline]
    if found.where:
        lines += ["", f"where: {found.where}"]
    lines += [f"  {fact}" for fact in found.facts]
    if found.lines:
        lines += ["", "its last lines:", *(f"  | {line}" for line in found.lines)]
    if found.evidence:
        lines += ["", "evidence:", *(f"  {fact}" for fact in found.evidence)]
    if found.consequences:
        names = list(found.consequences)
        more = f" and {len(names) - MANY} more" if len(names) > MANY else ""
        lines += ["", f"fell because of it: {', '.join(names[:MANY])}{more}"]
    if found.earlier:
        kept = found.earlier[-MANY:]
        left = len(found.earlier) - len(kept)
        lines += [
            "",
            "failed before:",
            *([f"  ({left} earlier ones left out)"] if left else []),
            *(f"  {line}" for line in kept),
        ]
    if found.advice:
        lines += ["", f"hint: {found.advice}"]
    return "\n".join(lines + next_lines(found.next))
