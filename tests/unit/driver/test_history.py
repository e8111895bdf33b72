"""A driver that takes over after any event of the journal brings the run to the end that it would have had."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.driver.history import RunHistory, look_back
from longboat.runtime.pipeline import (
    BeginStage,
    Finished,
    GateVerdict,
    HaltStage,
    Pipeline,
    StageEnded,
    StageReady,
    Step,
)
from longboat.runtime.plan import Gate, Plan, Stage
from longboat.runtime.seat import Seat

Event = dict[str, Any]

BROKEN = {"kind": CauseKind.USER_ERROR.value, "message": "ValueError: no"}
HALTED = {"kind": CauseKind.STOPPED.value, "message": "stopped because another stage failed"}


def gang(name: str, *after: str, retries: int = 0) -> Stage:
    return Stage(name, after=after, shape="single", retries=retries)


class Run:
    """A run whose gangs end one after the other, the newest first, as is said by name and attempt."""

    def __init__(self, plan: Plan, ends: dict[tuple[str, int], str], accuracy: dict[int, float]) -> None:
        self.plan, self.ends, self.accuracy = plan, ends, accuracy
        self.events: list[Event] = []
        self.begun: list[tuple[str, int]] = []

    def drive(self, before: RunHistory) -> Iterator[Event]:
        """Every event as it is written; the run's end is the last."""
        self.halted: set[str] = set()
        self.running = {name: left.attempt for name, left in before.unfinished.items()}
        self.pipeline = Pipeline(
            self.plan,
            passed=frozenset(before.passed),
            attempts=before.attempts,
            retries=before.retries,
            running=frozenset(before.unfinished),
            refused=frozenset(name for name, left in before.unfinished.items() if left.refused),
            end=before.end,
        )
        for name, value in before.metrics.values.get("train", {}).items():
            self.pipeline.metric("train", name, value)
        for name, left in before.unfinished.items():
            if left.decided:
                yield from self._over(name, left.decided, left.cause)
        yield from self._follow(self.pipeline.begin())
        while self.running:
            name = next((name for name in self.running if name in self.halted), next(reversed(self.running)))
            if self.plan.stage(name).kind == "serve" and name not in self.halted:
                yield from self._follow(self.pipeline.stage_ready(name))
                self.running = {name: self.running.pop(name), **self.running}
                continue
            attempt = self.running[name]
            if name == "train" and attempt in self.accuracy:
                value = self.accuracy[attempt]
                yield {"ev": "rank.report", "stage": name, "points": [{"accuracy": value}]}
                self.pipeline.metric(name, "accuracy", value)
            state = "stopped" if name in self.halted else self.ends.get((name, attempt), "succeeded")
            told = {"failed": {"cause": BROKEN}, "stopped": {"cause": HALTED}}.get(state, {})
            if self.plan.stage(name).kind != "serve":
                yield {"ev": "gen.ended", "stage": name, "state": state, **told}
            cause = Cause(CauseKind(told["cause"]["kind"]), told["cause"]["message"]) if told else None
            yield from self._over(name, state, cause)

    def _over(self, name: str, state: str, cause: Cause | None) -> Iterator[Event]:
        del self.running[name]
        self.halted.discard(name)
        yield from self._follow(self.pipeline.stage_over(name, state, cause))

    def _follow(self, steps: list[Step]) -> Iterator[Event]:
        for step in steps:
            if isinstance(step, BeginStage):
                self.running[step.stage] = step.attempt
                yield {"ev": "stage.started", "stage": step.stage, "attempt": step.attempt}
            elif isinstance(step, HaltStage):
                self.halted.add(step.stage)
            elif isinstance(step, StageReady):
                yield {"ev": "stage.ready", "stage": step.stage}
            elif isinstance(step, GateVerdict):
                told = {"again": step.again, "through": step.through, "attempt": step.attempt}
                yield {"ev": "verdict", "stage": step.stage, **told}
            elif isinstance(step, StageEnded):
                cause = {"kind": step.cause.kind.value, "message": step.cause.message} if step.cause else None
                yield {
                    "ev": "stage.ended", "stage": step.stage, "state": step.state,
                    "attempts": step.attempts, "cause": cause,
                }  # fmt: skip
            elif isinstance(step, Finished):
                message = step.cause.message if step.cause else ""
                yield {"ev": "run.ended", "state": step.state, "code": step.code, "message": message}


GATED = Plan(
    "job",
    stages=(
        gang("train", retries=1),
        gang("export", "train"),
        Stage("good", kind="gate", after=("export",), gate=Gate("train", "accuracy", 0.5, None, 2)),
        gang("report", "good"),
    ),
)
SERVED = Plan(
    "job",
    stages=(
        gang("train"),
        Stage("serve", kind="serve", after=("train",), shape="single"),
        gang("ask", "serve"),
        Stage("good", kind="gate", after=("ask",), gate=Gate("train", "accuracy", 0.5, None, 1)),
    ),
)
SIDE_BY_SIDE = Plan("job", stages=(gang("train", retries=1), gang("other"), gang("third"), gang("last", "train")))
FAILS = {("train", 1): "failed", ("train", 2): "failed"}


@pytest.mark.parametrize(
    ("plan", "ends", "accuracy", "state"),
    [
        (GATED, {("train", 1): "failed"}, {2: 0.1, 3: 0.2, 4: 0.9}, "succeeded"),
        (GATED, {("train", 1): "failed"}, {2: 0.1, 3: 0.2, 4: 0.3}, "gate_missed"),
        (GATED, {("train", 1): "failed", ("train", 3): "failed"}, {2: 0.1}, "failed"),
        (GATED, {}, {}, "gate_missed"),
        (SERVED, {}, {1: 0.1, 2: 0.9}, "succeeded"),
        (SERVED, {}, {1: 0.1, 2: 0.2}, "gate_missed"),
        (SIDE_BY_SIDE, FAILS, {}, "failed"),
        (SIDE_BY_SIDE, {("other", 1): "failed"}, {}, "failed"),
    ],
)
def test_whoever_takes_over_after_any_event_ends_the_run_as_it_would_have_ended(
    plan: Plan, ends: dict[tuple[str, int], str], accuracy: dict[int, float], state: str
) -> None:
    run = Run(plan, ends, accuracy)
    whole = list(run.drive(RunHistory()))
    assert whole[-1]["state"] == state
    attempts = {event["stage"]: event["attempts"] for event in whole if event["ev"] == "stage.ended"}
    for cut in range(1, len(whole)):
        events = whole[:cut]
        events += run.drive(look_back(events))
        assert events[-1] == whole[-1], f"cut after {whole[cut - 1]}"
        begun = [(event["stage"], event["attempt"]) for event in events if event["ev"] == "stage.started"]
        assert len(begun) == len(set(begun)), f"cut after {whole[cut - 1]}"
        ended = {event["stage"]: event["attempts"] for event in events if event["ev"] == "stage.ended"}
        assert ended == attempts, f"cut after {whole[cut - 1]}"


def test_who_orders_that_a_run_goes_on_gives_all_retries_anew() -> None:
    run = Run(GATED, {}, {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4, 5: 0.5})
    events = list(run.drive(RunHistory()))
    assert events[-1]["state"] == "gate_missed"
    events.append({"ev": "run.started", "order": "2"})
    before = look_back(events)
    assert (before.end, before.retries, before.attempts["good"]) == (None, {}, 3)
    events += run.drive(before)
    assert events[-1]["state"] == "succeeded"
    assert [event["attempt"] for event in events if event["ev"] == "verdict"] == [1, 2, 3, 4, 5]
    exported = [event["attempt"] for event in events if event["ev"] == "stage.started" and event["stage"] == "export"]
    assert exported == [1, 2, 3, 4, 5], "what stands between is made from the newest model"


def told(rank: int, accuracy: float, role: str = "worker") -> Event:
    return {"ev": "rank.report", "stage": "train", "role": role, "rank": rank, "points": [{"accuracy": accuracy}]}


def test_the_first_rank_is_believed_by_the_next_driver_too() -> None:
    before = look_back([told(0, 0.9), told(1, 0.8)])
    assert before.metrics.values == {"train": {"accuracy": 0.9}}
    assert before.metrics.take(Seat("train", "worker", 1), [{"accuracy": 0.7}]) == {}
    assert before.metrics.take(Seat("train", "worker", 0), [{"accuracy": 0.95}]) == {"accuracy": 0.95}


def test_in_a_job_that_was_changed_another_rank_may_be_the_first() -> None:
    before = look_back([told(0, 0.1, "chief"), {"ev": "run.started", "order": "2"}])
    assert before.metrics.values == {"train": {"accuracy": 0.1}}
    assert before.metrics.take(Seat("train", "worker", 0), [{"accuracy": 0.9}]) == {"accuracy": 0.9}


def test_another_attempt_that_is_taken_over_before_it_formed_stands_in_its_round() -> None:
    start = {"ev": "stage.started", "stage": "train", "attempt": 1}
    formed = {"ev": "gen.started", "stage": "train", "gen": 1, "round": 3}
    left = look_back([start, formed, {**start, "attempt": 2}]).unfinished["train"]
    assert (left.attempt, left.round) == (2, 3)
