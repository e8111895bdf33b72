"""What a bench of a cluster says: a table, and which of its promises were kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Kept:
    says: str
    figure: str
    met: bool


@dataclass(frozen=True)
class Report:
    text: str
    missed: int = 0


def table(title: str, what: str, headers: Sequence[str], rows: Sequence[Sequence[str]], kept: Sequence[Kept]) -> Report:
    lines = [f"### {title}", "", what, "", f"| {' | '.join(headers)} |", "|" + "---|" * len(headers)]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    lines += ["", *(f"- {each.says}: {each.figure}: **{'met' if each.met else 'missed'}**" for each in kept)]
    return Report("\n".join(lines) + "\n", sum(not each.met for each in kept))
