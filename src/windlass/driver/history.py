"""What earlier parts of a resumed run left behind, read from its journal.

Ships into strangers' images: standard library only, Python 3.9.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, Iterable, Mapping, Optional, Sequence, Tuple

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
    """What the journal tells of earlier parts of a run."""

    passed: Tuple[str, ...] = ()
    attempts: Mapping[str, int] = field(default_factory=dict)
    generations: Mapping[str, int] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    unfinished: Mapping[str, Unfinished] = field(default_factory=dict)
    rounds: Mapping[str, Tuple[int, bool]] = field(default_factory=dict)
    """Round in which a stage stands that has not succeeded, and whether that was being merged."""
    left_out: Tuple[str, ...] = ()
    """Stages that the newest order leaves out."""
    order: str = ""
    """The newest order that a driver has taken up."""
    last: str = ""
    """The last event's name; empty: nothing has happened yet."""


def look_back(events: Iterable[Dict[str, Any]]) -> Before:
    passed: Dict[str, bool] = {}
    attempts: Dict[str, int] = {}
    generations: Dict[str, int] = {}
    values: Dict[str, Dict[str, float]] = {}
    unfinished: Dict[str, Unfinished] = {}
    rounds: Dict[str, Tuple[int, bool]] = {}
    order: Dict[str, Any] = {}
    ev = ""
    for event in events:
        ev, stage = event["ev"], event.get("stage", "")
        if event.get("order"):  # of run.started
            order = event
            _ordered(event, passed, values, unfinished)
        elif ev == "stage.started":
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
        elif ev in ("rank.ended", "checkpoint") and stage in unfinished:
            unfinished[stage] = _spent(unfinished[stage], event)
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
    done = tuple(s for s, ok in passed.items() if ok)
    left_out = tuple(order.get("left_out", ()))
    return Before(done, attempts, generations, values, unfinished, rounds, left_out, str(order.get("order", "")), ev)


def _spent(stage: Unfinished, event: Mapping[str, Any]) -> Unfinished:
    """A rank's end may cost restarts; a checkpoint gives all of them back."""
    if event["ev"] == "checkpoint":
        return replace(stage, restarts_left=None)
    left = event.get("restarts_left")
    return stage if left is None else replace(stage, restarts_left=left)


def _ordered(
    event: Mapping[str, Any],
    passed: Dict[str, bool],
    values: Dict[str, Dict[str, float]],
    unfinished: Dict[str, Unfinished],
) -> None:
    """Somebody has said how the run is to go on: these stages run anew. Nothing is under way but servers, which are
    brought up again when their turn comes."""
    unfinished.clear()
    for name in event.get("again", ()):
        passed[name] = False
        values.pop(name, None)


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
