"""What the journal says about the earlier parts of a resumed run."""

from __future__ import annotations

from typing import Callable, Dict, Iterable, Mapping, Optional, Sequence, Tuple

from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.driver.dedup import WRITTEN_AS, MessageNumber, MessageSource
from longboat.runtime.driver.metrics import Metrics
from longboat.runtime.errors import FAILED, GATE_NOT_MET
from longboat.runtime.gang.gang_events import Incarnation
from longboat.runtime.journal import Event, cause_of
from longboat.runtime.light_dataclasses import dataclass, field, replace
from longboat.runtime.pipeline import Finished
from longboat.runtime.seat import Seat


@dataclass(frozen=True)
class UnfinishedStage:
    """A stage that was running when the journal stopped."""

    attempt: int = 1
    round: int = 1
    merging: bool = False
    open: bool = False
    """Its last generation was started and is not known to have ended."""
    restarts_left: Optional[int] = None
    """None: all of them."""
    decided: str = ""
    """How the gang ended, if only the end of the stage is missing: succeeded, failed or stopped."""
    cause: Optional[Cause] = None
    refused: bool = False
    """It serves a model that a gate rejected."""


@dataclass(frozen=True)
class RunHistory:
    """State of a run according to its journal."""

    passed: Tuple[str, ...] = ()
    attempts: Mapping[str, int] = field(default_factory=dict)
    retries: Mapping[str, int] = field(default_factory=dict)
    """Retries that stages and gates have used since a user last resumed the run."""
    generations: Mapping[str, int] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=Metrics)
    unfinished: Mapping[str, UnfinishedStage] = field(default_factory=dict)
    rounds: Mapping[str, Tuple[int, bool]] = field(default_factory=dict)
    """Round of each stage that has not succeeded, and whether it was being merged."""
    left_out: Tuple[str, ...] = ()
    """Stages that the latest order leaves out."""
    order: str = ""
    """The latest order that a driver accepted."""
    end: Optional[Finished] = None
    """How the run ends, if a stage failed for good and the end of the run is missing."""
    serving: bool = False
    """All stages were done, and servers kept running."""
    last: str = ""
    """Name of the last event; empty: no events yet."""
    last_messages: Mapping[MessageSource, MessageNumber] = field(default_factory=dict)
    """The last message of each source."""
    incarnations: Mapping[Seat, Incarnation] = field(default_factory=dict)
    """The last incarnation of each seat that started."""


def look_back(events: Iterable[Event]) -> RunHistory:
    """Read the history of a run from its journal."""
    reading = _Reading()
    last = ""
    for event in events:
        last = event["ev"]
        if last in reading.read:
            reading.read[last](event.get("stage", ""), event)
        if last in WRITTEN_AS and "word" in event:
            source = (event["stage"], event["role"], event["rank"], WRITTEN_AS[last])
            reading.last_messages[source] = event["gen"], event["restart"], event["word"]
    return RunHistory(
        passed=tuple(stage for stage, ok in reading.passed.items() if ok),
        attempts=reading.attempts,
        retries=reading.retries,
        generations=reading.generations,
        metrics=reading.metrics,
        unfinished=reading.unfinished,
        rounds=reading.rounds,
        left_out=tuple(reading.order.get("left_out", ())),
        order=str(reading.order.get("order", "")),
        end=reading.end,
        serving=reading.serving,
        last=last,
        last_messages=reading.last_messages,
        incarnations=reading.incarnations,
    )


class _Reading:
    """State after the events so far."""

    def __init__(self) -> None:
        self.passed: Dict[str, bool] = {}
        self.attempts: Dict[str, int] = {}
        self.retries: Dict[str, int] = {}
        self.generations: Dict[str, int] = {}
        self.metrics = Metrics()
        self.unfinished: Dict[str, UnfinishedStage] = {}
        self.rounds: Dict[str, Tuple[int, bool]] = {}
        self.last_messages: Dict[MessageSource, MessageNumber] = {}
        self.incarnations: Dict[Seat, Incarnation] = {}
        self.order: Event = {}
        self.end: Optional[Finished] = None
        self.serving = False
        self._missed: Dict[str, Sequence[str]] = {}
        self.read: Mapping[str, Callable[[str, Event], None]] = {
            "run.started": self._ordered,
            "run.serving": self._serving,
            "stage.started": self._stage_started,
            "stage.ended": self._stage_ended,
            "gen.started": self._gen_started,
            "gen.ended": self._gen_ended,
            "rank.started": self._rank_started,
            "rank.ended": self._rank_ended,
            "rank.report": self._report,
            "checkpoint": self._checkpoint,
            "verdict": self._verdict,
        }

    def _ordered(self, _: str, event: Event) -> None:
        """A user resumed the run: the given stages run again. Nothing runs except servers, which are started again
        when their turn comes. (A driver that takes over has no order.)"""
        if not event.get("order"):
            return
        self.order, self.end, self.serving = event, None, False
        self.retries.clear()
        self.unfinished.clear()
        self.passed.update(dict.fromkeys(event.get("again", ()), False))
        self.metrics.forget(event.get("again", ()))

    def _serving(self, _: str, __: Event) -> None:
        self.serving = True

    def _stage_started(self, stage: str, event: Event) -> None:
        if stage in self.unfinished:
            self.retries[stage] = self.retries.get(stage, 0) + 1
        self.attempts[stage] = event.get("attempt", 1)
        self.passed[stage] = False
        self.unfinished[stage] = UnfinishedStage(self.attempts[stage], *self.rounds.get(stage, (1, False)))

    def _stage_ended(self, stage: str, event: Event) -> None:
        state = event.get("state")
        self.passed[stage] = state == "succeeded"
        self.attempts[stage] = event.get("attempts", 1)
        self.unfinished.pop(stage, None)
        if state == "succeeded":
            self.rounds.pop(stage, None)
        for name in self._missed.pop(stage, ()):
            self.passed[name] = False  # after a missed gate, resuming means training on
        if state == "failed" and self.end is None:
            cause = cause_of(event)
            gate = cause is not None and cause.kind is CauseKind.GATE_NOT_MET
            self.end = Finished("gate_missed", GATE_NOT_MET, cause) if gate else Finished("failed", FAILED, cause)

    def _gen_started(self, stage: str, event: Event) -> None:
        self.generations[stage] = event["gen"]
        self.rounds[stage] = event.get("round", 1), event.get("merging", False)
        left = self.unfinished[stage].restarts_left if stage in self.unfinished else None
        attempt = self.attempts.get(stage, 1)
        self.unfinished[stage] = UnfinishedStage(attempt, *self.rounds[stage], open=True, restarts_left=left)

    def _gen_ended(self, stage: str, event: Event) -> None:
        if stage in self.unfinished:
            self.unfinished[stage] = replace(
                self.unfinished[stage],
                open=False,
                restarts_left=event.get("restarts_left"),
                decided="" if event.get("again") else str(event.get("state", "")),
                cause=cause_of(event),
            )

    def _rank_started(self, stage: str, event: Event) -> None:
        self.incarnations[Seat(stage, event["role"], event["rank"])] = event["gen"], event.get("restart", 0)

    def _rank_ended(self, stage: str, event: Event) -> None:
        left = event.get("restarts_left")
        if stage in self.unfinished and left is not None:
            self.unfinished[stage] = replace(self.unfinished[stage], restarts_left=left)

    def _checkpoint(self, stage: str, _: Event) -> None:
        if stage in self.unfinished:
            self.unfinished[stage] = replace(self.unfinished[stage], restarts_left=None)

    def _report(self, stage: str, event: Event) -> None:
        self.metrics.take(Seat(stage, event.get("role", ""), event.get("rank", 0)), event.get("points", ()))

    def _verdict(self, stage: str, event: Event) -> None:
        if not event.get("again"):
            of = [event["of"]] if event.get("passed") is False and "of" in event else []
            self._missed[stage] = event.get("through", of)
            return
        self.attempts[stage] = event.get("attempt", 1)
        self.retries[stage] = self.retries.get(stage, 0) + 1
        for name in event["through"]:
            self.passed[name] = False
            if name in self.unfinished:
                self.unfinished[name] = replace(self.unfinished[name], refused=True)


def run_anew(before: RunHistory, stages: Sequence[str]) -> RunHistory:
    """The history without the success of these stages. Their attempts and generations count on."""
    before.metrics.forget(stages)
    return replace(before, passed=tuple(name for name in before.passed if name not in stages))
