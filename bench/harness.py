"""How a figure is taken: contenders side by side, in turns, often enough to see the spread.

A bench is a list of contenders, each a function that does the work once and gives one number.
They take turns (A B C A B C ...), so that a slow minute of the machine falls on all of them.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


class NotMeasured(Exception):
    """This contender cannot run here; the message says why."""


@dataclass(frozen=True)
class Series:
    """The numbers of one contender."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.values) < 2:
            return self.values[0], self.values[0]
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return low, high


@dataclass(frozen=True)
class Contender:
    name: str
    once: Callable[[], float]


@dataclass(frozen=True)
class Target:
    """`bound` gives the most that `of` may have, in the bench's unit; `says` is the target in words."""

    says: str
    of: str
    bound: Callable[[Mapping[str, Series]], float]
    aim: bool = False
    """Wished for, not owed: to miss it is said and fails nothing."""


@dataclass(frozen=True)
class Bench:
    name: str
    what: str
    unit: str
    contenders: Sequence[Contender]
    targets: Sequence[Target]
    rounds: int = 0
    """For what takes minutes: how many turns, with none to warm up. 0: as asked for."""


@dataclass(frozen=True)
class Verdict:
    says: str
    state: str
    """met, missed, aim not reached or not measured."""
    figure: float | None = None
    bound: float | None = None


@dataclass(frozen=True)
class Result:
    bench: Bench
    series: Mapping[str, Series]
    skipped: Mapping[str, str]
    verdicts: Sequence[Verdict]


def measure(bench: Bench, rounds: int) -> Result:
    """One warm-up turn that is not counted, then `rounds` turns."""
    rounds, warm_up = (bench.rounds, 0) if bench.rounds else (rounds, 1)
    values: dict[str, list[float]] = {}
    skipped: dict[str, str] = {}
    for turn in range(1 - warm_up, rounds + 1):
        for contender in bench.contenders:
            if contender.name in skipped:
                continue
            _show(f"{bench.name}: {turn}/{rounds} {contender.name}")
            try:
                value = contender.once()
            except NotMeasured as why:
                skipped[contender.name] = str(why)
                continue
            if turn:
                values.setdefault(contender.name, []).append(value)
    _show("")
    series = {name: Series(tuple(found)) for name, found in values.items() if name not in skipped}
    return Result(bench, series, skipped, [_judge(target, series) for target in bench.targets])


def _show(text: str) -> None:
    """How far it is, on one line of a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _judge(target: Target, series: Mapping[str, Series]) -> Verdict:
    try:
        figure, bound = series[target.of].median, target.bound(series)
    except KeyError:
        return Verdict(target.says, "not measured")
    short = "aim not reached" if target.aim else "missed"
    return Verdict(target.says, "met" if figure <= bound else short, figure, bound)


def markdown(result: Result) -> str:
    unit = result.bench.unit
    lines = [
        f"### {result.bench.name}",
        "",
        result.bench.what,
        "",
        f"| | median, {unit} | middle half | all | rounds |",
        "|---|---|---|---|---|",
    ]
    for contender in result.bench.contenders:
        found = result.series.get(contender.name)
        if found is None:
            lines.append(f"| {contender.name} | not measured: {result.skipped.get(contender.name, '')} | | | |")
            continue
        low, high = found.quartiles
        spread = f"{low:.3f} to {high:.3f} | {min(found.values):.3f} to {max(found.values):.3f}"
        lines.append(f"| {contender.name} | {found.median:.3f} | {spread} | {len(found.values)} |")
    lines.append("")
    for verdict in result.verdicts:
        figures = "" if verdict.figure is None else f": {verdict.figure:.3f} against {verdict.bound:.3f} {unit}"
        lines.append(f"- {verdict.says}{figures}: **{verdict.state}**")
    return "\n".join(lines) + "\n"
