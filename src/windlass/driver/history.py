"""What earlier parts of a resumed run left behind, read from its journal.

Ships into strangers' images: standard library only, Python 3.9.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, Mapping, Sequence, Tuple


@dataclass(frozen=True)
class Unfinished:
    """A stage that was under way when the journal stopped."""

    attempt: int = 1
    round: int = 1
    merging: bool = False
    open: bool = False
    """Its last generation was started and is not known to have ended."""


@dataclass(frozen=True)
class Before:
    passed: Tuple[str, ...] = ()
    attempts: Mapping[str, int] = field(default_factory=dict)
    generations: Mapping[str, int] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    unfinished: Mapping[str, Unfinished] = field(default_factory=dict)


def look_back(events: Sequence[Dict[str, Any]]) -> Before:
    passed: Dict[str, bool] = {}
    attempts: Dict[str, int] = {}
    generations: Dict[str, int] = {}
    values: Dict[str, Dict[str, float]] = {}
    unfinished: Dict[str, Unfinished] = {}
    for event in events:
        ev, stage = event["ev"], event.get("stage", "")
        if ev == "stage.started":
            attempts[stage] = event.get("attempt", 1)
            passed[stage] = False
            unfinished[stage] = Unfinished(attempts[stage])
        elif ev == "gen.started":
            generations[stage] = event["gen"]
            unfinished[stage] = Unfinished(
                attempts.get(stage, 1), event.get("round", 1), event.get("merging", False), open=True
            )
        elif ev == "gen.ended" and stage in unfinished:
            unfinished[stage] = replace(unfinished[stage], open=False)
        elif ev == "stage.ended":
            passed[stage] = event.get("state") == "succeeded"
            unfinished.pop(stage, None)
        elif ev == "verdict" and event.get("passed") is False:
            passed[event.get("of", "")] = False  # to go on after a missed gate is to train on
        elif ev == "rank.report":
            for point in event.get("points", ()):
                values.setdefault(stage, {}).update(metrics(point))
    return Before(tuple(s for s, ok in passed.items() if ok), attempts, generations, values, unfinished)


def metrics(point: Mapping[str, Any]) -> Dict[str, float]:
    """The metrics of a reported point, as numbers."""
    found = {}
    for name, value in point.items():
        if name not in ("t", "step", "total") and isinstance(value, (int, float, str)):
            try:
                found[name] = float(value)
            except ValueError:
                continue
    return found
