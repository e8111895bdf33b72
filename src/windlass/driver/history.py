"""What earlier parts of a resumed run left behind, read from its journal.

Ships into strangers' images: standard library only, Python 3.9.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Sequence, Tuple


@dataclass(frozen=True)
class Before:
    passed: Tuple[str, ...] = ()
    attempts: Mapping[str, int] = field(default_factory=dict)
    generations: Mapping[str, int] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def look_back(events: Sequence[Dict[str, Any]]) -> Before:
    passed: Dict[str, bool] = {}
    attempts: Dict[str, int] = {}
    generations: Dict[str, int] = {}
    values: Dict[str, Dict[str, float]] = {}
    for event in events:
        stage = event.get("stage", "")
        if event["ev"] == "stage.started":
            attempts[stage] = event.get("attempt", 1)
            passed[stage] = False
        elif event["ev"] == "gen.started":
            generations[stage] = event["gen"]
        elif event["ev"] == "stage.ended":
            passed[stage] = event.get("state") == "succeeded"
        elif event["ev"] == "rank.report":
            for point in event.get("points", ()):
                values.setdefault(stage, {}).update(metrics(point))
    return Before(tuple(s for s, ok in passed.items() if ok), attempts, generations, values)


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
