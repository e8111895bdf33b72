"""What earlier parts of a resumed run left behind, read from its journal.

Ships into strangers' images: standard library only, Python 3.9.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from windlass.causes import Cause
from windlass.journal import cause_of


@dataclass(frozen=True)
class Unfinished:
    """A stage that was under way when the journal stopped."""

    attempt: int = 1
    round: int = 1
    merging: bool = False
    open: bool = False
    """Its last generation was started and is not known to have ended."""
    restarts_left: Optional[int] = None
    """None: all of them."""
    decided: str = ""
    """How the gang ended, when only the stage's own end is missing: succeeded, failed or stopped."""
    cause: Optional[Cause] = None


@dataclass(frozen=True)
class Before:
    passed: Tuple[str, ...] = ()
    attempts: Mapping[str, int] = field(default_factory=dict)
    generations: Mapping[str, int] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    unfinished: Mapping[str, Unfinished] = field(default_factory=dict)
    rounds: Mapping[str, Tuple[int, bool]] = field(default_factory=dict)
    """Round in which a stage stands that has not succeeded, and whether that was being merged."""


def look_back(events: Sequence[Dict[str, Any]]) -> Before:
    passed: Dict[str, bool] = {}
    attempts: Dict[str, int] = {}
    generations: Dict[str, int] = {}
    values: Dict[str, Dict[str, float]] = {}
    unfinished: Dict[str, Unfinished] = {}
    rounds: Dict[str, Tuple[int, bool]] = {}
    for event in events:
        ev, stage = event["ev"], event.get("stage", "")
        if ev == "stage.started":
            attempts[stage] = event.get("attempt", 1)
            passed[stage] = False
            unfinished[stage] = Unfinished(attempts[stage])
        elif ev == "gen.started":
            generations[stage] = event["gen"]
            rounds[stage] = event.get("round", 1), event.get("merging", False)
            unfinished[stage] = Unfinished(
                attempts.get(stage, 1),
                event.get("round", 1),
                event.get("merging", False),
                open=True,
                restarts_left=unfinished[stage].restarts_left if stage in unfinished else None,
            )
        elif ev == "gen.ended" and stage in unfinished:
            decided = "" if event.get("again") else str(event.get("state", ""))
            left = event.get("restarts_left")
            unfinished[stage] = replace(
                unfinished[stage], open=False, restarts_left=left, decided=decided, cause=cause_of(event)
            )
        elif ev == "rank.ended" and stage in unfinished and event.get("restarts_left") is not None:
            unfinished[stage] = replace(unfinished[stage], restarts_left=event["restarts_left"])
        elif ev == "checkpoint" and stage in unfinished:
            unfinished[stage] = replace(unfinished[stage], restarts_left=None)
        elif ev == "stage.ended":
            passed[stage] = event.get("state") == "succeeded"
            unfinished.pop(stage, None)
            if passed[stage]:
                rounds.pop(stage, None)
        elif ev == "verdict" and event.get("passed") is False:
            passed[event.get("of", "")] = False  # to go on after a missed gate is to train on
        elif ev == "rank.report":
            for point in event.get("points", ()):
                values.setdefault(stage, {}).update(metrics(point))
    return Before(tuple(s for s, ok in passed.items() if ok), attempts, generations, values, unfinished, rounds)


def run_anew(before: Before, stages: Sequence[str]) -> Before:
    """As if these stages had never passed. Their attempts and generations go on counting."""
    return replace(
        before,
        passed=tuple(name for name in before.passed if name not in stages),
        metrics={name: values for name, values in before.metrics.items() if name not in stages},
    )


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
