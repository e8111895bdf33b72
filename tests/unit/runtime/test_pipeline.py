"""The walk through the stages, step by step."""

from __future__ import annotations

import pytest

from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.pipeline import (
    BeginStage,
    Finished,
    GateVerdict,
    HaltStage,
    Pipeline,
    Serving,
    StageEnded,
    StageReady,
    Step,
)
from longboat.runtime.plan import Gate, Plan, Stage

FAILED = Cause(CauseKind.USER_ERROR, "ValueError: no", exit_code=1)


def gang(name: str, *after: str, retries: int = 0) -> Stage:
    return Stage(name, after=after, shape="single", retries=retries)


def gate(
    name: str, of: str, *after: str, retries: int = 0, at_least: float | None = None, at_most: float | None = None
) -> Stage:
    return Stage(name, kind="gate", after=after or (of,), gate=Gate(of, "accuracy", at_least, at_most, retries))


def pipeline(*stages: Stage, **more: object) -> Pipeline:
    return Pipeline(Plan("job", stages=stages), **more)  # type: ignore[arg-type]


def begun(steps: list[Step]) -> list[tuple[str, int]]:
    return [(step.stage, step.attempt) for step in steps if isinstance(step, BeginStage)]


def finished(steps: list[Step]) -> Finished:
    assert isinstance(steps[-1], Finished), steps
    return steps[-1]


def test_a_stage_begins_when_all_before_it_have_succeeded() -> None:
    it = pipeline(gang("a"), gang("b"), gang("c", "a", "b"), gang("d", "c"))
    assert begun(it.begin()) == [("a", 1), ("b", 1)]
    assert begun(it.stage_over("a", "succeeded", None)) == []
    assert begun(it.stage_over("b", "succeeded", None)) == [("c", 1)]
    assert begun(it.stage_over("c", "succeeded", None)) == [("d", 1)]
    assert finished(it.stage_over("d", "succeeded", None)) == Finished("succeeded", 0)


def test_a_job_of_no_stages_is_done() -> None:
    assert pipeline().begin() == [Finished("succeeded", 0)]


def test_a_failed_stage_is_tried_again_as_often_as_it_may_be() -> None:
    it = pipeline(gang("a", retries=2))
    it.begin()
    assert it.stage_over("a", "failed", FAILED) == [BeginStage("a", 2)]
    assert it.stage_over("a", "failed", FAILED) == [BeginStage("a", 3)]
    assert it.stage_over("a", "failed", FAILED) == [StageEnded("a", "failed", 3, FAILED), Finished("failed", 1, FAILED)]


@pytest.mark.parametrize(
    "kind", [CauseKind.NOT_FOUND, CauseKind.NOT_EXECUTABLE, CauseKind.MPI_MISMATCH, CauseKind.DISK_FULL]
)
def test_what_another_attempt_cannot_cure_is_not_tried_again(kind: CauseKind) -> None:
    it = pipeline(gang("a", retries=5))
    it.begin()
    assert finished(it.stage_over("a", "failed", Cause(kind, "no"))).state == "failed"


def test_the_first_stage_that_fails_for_good_halts_the_others_and_stays_the_cause() -> None:
    it = pipeline(gang("a"), gang("b", retries=3), gang("c", "a"))
    it.begin()
    steps = it.stage_over("a", "failed", FAILED)
    assert steps == [StageEnded("a", "failed", 1, FAILED), HaltStage("b")]
    stopped = Cause(CauseKind.STOPPED, "stopped because another stage failed")
    end = it.stage_over("b", "stopped", stopped)
    assert finished(end) == Finished("failed", 1, FAILED)


def test_a_stage_that_fails_while_it_is_halted_is_not_tried_again() -> None:
    it = pipeline(gang("a"), gang("b", retries=3))
    it.begin()
    it.stage_over("a", "failed", FAILED)
    other = Cause(CauseKind.KILLED, "killed")
    assert finished(it.stage_over("b", "failed", other)).cause == FAILED


def test_a_stage_that_succeeds_while_the_run_is_given_up_leads_to_no_other() -> None:
    it = pipeline(gang("a"), gang("b"), gang("c", "b"))
    it.begin()
    it.stage_over("a", "failed", FAILED)
    steps = it.stage_over("b", "succeeded", None)
    assert begun(steps) == []
    assert finished(steps).state == "failed"


def test_a_stop_halts_what_runs_and_begins_nothing_more() -> None:
    it = pipeline(gang("a"), gang("b", "a"))
    it.begin()
    cause = Cause(CauseKind.STOPPED, "stopped by Ctrl-C")
    assert it.stop(cause) == [HaltStage("a")]
    steps = it.stage_over("a", "stopped", cause)
    assert finished(steps) == Finished("stopped", 130, cause)


def test_a_stop_when_nothing_runs_ends_the_run_at_once_and_a_second_one_is_harmless() -> None:
    it = pipeline(gang("a"), gang("b", "a"))
    cause = Cause(CauseKind.STOPPED, "stopped by Ctrl-C")
    assert it.stop(cause) == [Finished("stopped", 130, cause)]
    assert it.stop(cause) == []


@pytest.mark.parametrize(
    ("at_least", "at_most", "value", "passed"),
    [
        (0.5, None, 0.5, True),
        (0.5, None, 0.49, False),
        (None, 0.5, 0.5, True),
        (None, 0.5, 0.51, False),
        (0.1, 0.5, 0.3, True),
        (0.1, 0.5, 0.05, False),
        (None, 0.5, float("nan"), False),
        (None, 0.5, float("inf"), False),
        (None, 0.5, float("-inf"), True),
        (None, None, 0.3, None),
        (None, None, None, None),
        (0.0, None, None, False),
    ],
)
def test_a_gate_compares_the_newest_value_with_its_target(
    at_least: float | None, at_most: float | None, value: float | None, passed: bool | None
) -> None:
    it = pipeline(gang("a"), gate("g", "a", at_least=at_least, at_most=at_most))
    it.begin()
    if value is not None:
        it.metric("a", "accuracy", -99.0)
        it.metric("a", "accuracy", value)
    steps = it.stage_over("a", "succeeded", None)
    (answer,) = [step for step in steps if isinstance(step, GateVerdict)]
    assert answer.passed is passed
    assert finished(steps).code == (3 if passed is False else 0)


def test_a_missed_gate_sends_its_stage_and_what_stands_between_through_again() -> None:
    it = pipeline(gang("a"), gang("b", "a"), gate("g", "a", "b", at_least=0.5, retries=1), gang("c", "g"))
    it.begin()
    it.metric("a", "accuracy", 0.1)
    it.stage_over("a", "succeeded", None)
    steps = it.stage_over("b", "succeeded", None)
    assert begun(steps) == [("a", 2)]
    it.metric("a", "accuracy", 0.9)
    assert begun(it.stage_over("a", "succeeded", None)) == [("b", 2)]
    assert begun(it.stage_over("b", "succeeded", None)) == [("c", 1)]


def test_a_gates_misses_are_told_with_the_figures() -> None:
    it = pipeline(gang("a"), gate("g", "a", at_least=0.5, at_most=0.9, retries=1))
    it.begin()
    it.metric("a", "accuracy", 0.25)
    it.stage_over("a", "succeeded", None)
    end = finished(it.stage_over("a", "succeeded", None))
    assert (end.state, end.code) == ("gate_missed", 3)
    assert end.cause is not None
    assert end.cause.message == "accuracy is 0.25 after 2 tries and must be at least 0.5 and at most 0.9"


def test_nothing_begins_once_a_gate_has_ended_the_run() -> None:
    it = pipeline(gang("train"), gate("g", "train", at_least=0.5), gang("report", "train"))
    it.begin()
    it.metric("train", "accuracy", 0.1)
    steps = it.stage_over("train", "succeeded", None)
    assert begun(steps) == []
    assert finished(steps).state == "gate_missed"


def test_a_gate_may_look_at_a_stage_further_back() -> None:
    it = pipeline(gang("a"), gang("b", "a"), gate("g", "a", "b", at_least=0.5))
    it.begin()
    it.metric("a", "accuracy", 0.7)
    it.stage_over("a", "succeeded", None)
    assert finished(it.stage_over("b", "succeeded", None)).state == "succeeded"


def test_a_resumed_run_begins_behind_what_had_passed_and_counts_attempts_on() -> None:
    it = pipeline(gang("a"), gang("b", "a"), passed=frozenset({"a"}), attempts={"a": 2, "b": 3})
    assert begun(it.begin()) == [("b", 4)]
    assert finished(it.stage_over("b", "succeeded", None)).state == "succeeded"


def test_a_resumed_run_whose_stages_have_all_passed_asks_its_gate_with_the_old_metric() -> None:
    it = pipeline(gang("a"), gate("g", "a", at_least=0.5), passed=frozenset({"a"}))
    it.metric("a", "accuracy", 0.7)
    assert finished(it.begin()).state == "succeeded"


def server(name: str, *after: str) -> Stage:
    return Stage(name, kind="serve", after=after, shape="single")


STOPPED = Cause(CauseKind.STOPPED, "stopped by Ctrl-C")


def test_what_comes_after_a_server_begins_when_it_is_ready_and_the_server_ends_last() -> None:
    it = pipeline(gang("train"), server("serve", "train"), gang("load", "serve"))
    it.begin()
    assert begun(it.stage_over("train", "succeeded", None)) == [("serve", 1)]
    assert it.stage_ready("serve") == [StageReady("serve"), BeginStage("load", 1)]
    assert it.stage_ready("serve") == []
    assert it.stage_over("load", "succeeded", None) == [
        StageEnded("load", "succeeded", 1),
        HaltStage("serve", done=True),
    ]
    end = it.stage_over("serve", "stopped", STOPPED)
    assert end == [StageEnded("serve", "succeeded", 1), Finished("succeeded", 0)]


def test_a_run_that_is_kept_serves_until_it_is_stopped_and_has_then_succeeded() -> None:
    it = pipeline(server("serve"), keep=True)
    it.begin()
    assert it.stage_ready("serve") == [StageReady("serve"), Serving()]
    assert it.stop(STOPPED) == [HaltStage("serve", done=True)]
    assert it.stage_over("serve", "stopped", STOPPED)[-1] == Finished("succeeded", 0)


def test_a_stop_right_after_a_driver_took_over_what_only_served_is_a_success_too() -> None:
    stages = gang("train"), server("serve", "train")
    it = pipeline(*stages, passed=frozenset({"train"}), running=frozenset({"serve"}), keep=True, kept=True)
    assert it.stop(STOPPED) == [HaltStage("serve", done=True)]
    assert it.begin() == []
    assert finished(it.stage_over("serve", "stopped", STOPPED)).state == "succeeded"


def test_a_driver_that_takes_over_what_only_served_says_again_that_it_serves() -> None:
    stages = gang("train"), server("serve", "train")
    it = pipeline(*stages, passed=frozenset({"train"}), running=frozenset({"serve"}), keep=True, kept=True)
    assert it.begin() == []
    assert it.stage_ready("serve") == [StageReady("serve"), Serving()]


@pytest.mark.parametrize("end", [None, Finished("failed", 1, FAILED)])
def test_a_refused_server_that_was_taken_over_is_halted_also_when_the_run_must_end(end: Finished | None) -> None:
    stages = (gang("train"), server("serve", "train"), gate("g", "train", "serve", at_least=0.5, retries=1))
    left = {"running": frozenset({"serve"}), "refused": frozenset({"serve"})}
    it = pipeline(*stages, **left, keep=True, end=end)
    if end is None:
        it.stop(STOPPED)
    assert it.begin() == [HaltStage("serve", again=True)]
    assert finished(it.stage_over("serve", "stopped", STOPPED)).state == ("failed" if end else "stopped")


def test_a_stop_before_all_is_done_stops_the_servers_too() -> None:
    it = pipeline(server("serve"), gang("load", "serve"), keep=True)
    it.begin()
    it.stage_ready("serve")
    assert it.stop(STOPPED) == [HaltStage("serve"), HaltStage("load")]
    it.stage_over("load", "stopped", STOPPED)
    assert finished(it.stage_over("serve", "stopped", STOPPED)) == Finished("stopped", 130, STOPPED)


def test_a_server_that_falls_for_good_fails_the_run_also_while_it_is_kept() -> None:
    it = pipeline(server("serve"), keep=True)
    it.begin()
    it.stage_ready("serve")
    assert finished(it.stage_over("serve", "failed", FAILED)) == Finished("failed", 1, FAILED)


def test_a_failure_beside_a_server_stops_it_and_stays_the_cause() -> None:
    it = pipeline(server("serve"), gang("load", "serve"))
    it.begin()
    it.stage_ready("serve")
    assert it.stage_over("load", "failed", FAILED) == [StageEnded("load", "failed", 1, FAILED), HaltStage("serve")]
    assert finished(it.stage_over("serve", "stopped", STOPPED)) == Finished("failed", 1, FAILED)


def test_stages_that_are_left_out_neither_run_nor_hold_the_end_up() -> None:
    it = pipeline(gang("a"), gang("b", "a"), gang("c", "b"), passed=frozenset({"a"}), left_out=frozenset({"c"}))
    assert begun(it.begin()) == [("b", 1)]
    assert finished(it.stage_over("b", "succeeded", None)) == Finished("succeeded", 0)


def refused() -> Pipeline:
    """A gate behind a server has just sent its stage through again."""
    stages = (gang("train"), server("serve", "train"), gang("ask", "serve"))
    it = pipeline(*stages, gate("g", "train", "ask", at_least=0.5, retries=1), keep=True)
    it.begin()
    it.metric("train", "accuracy", 0.1)
    it.stage_over("train", "succeeded", None)
    it.stage_ready("serve")
    steps = it.stage_over("ask", "succeeded", None)
    assert [step for step in steps if isinstance(step, (BeginStage, HaltStage))] == [
        HaltStage("serve", again=True),
        BeginStage("train", 2),
    ]
    return it


@pytest.mark.parametrize("first", ["train", "serve"])
def test_a_server_whose_model_a_gate_refused_is_stopped_and_begun_with_the_next_one(first: str) -> None:
    it = refused()
    it.metric("train", "accuracy", 0.9)
    over = {"train": ("succeeded", None), "serve": ("stopped", STOPPED)}
    assert begun(it.stage_over(first, *over.pop(first))) == []
    (other,) = over
    assert begun(it.stage_over(other, *over[other])) == [("serve", 2)]
    assert begun(it.stage_ready("serve")) == [("ask", 2)]
    assert it.stage_over("ask", "succeeded", None)[-1] == Serving()


def test_a_run_that_fails_after_a_gates_refusal_ends_when_the_server_has() -> None:
    it = refused()
    assert it.stage_over("train", "failed", FAILED) == [StageEnded("train", "failed", 2, FAILED)]
    assert it.stage_over("serve", "stopped", STOPPED) == [
        StageEnded("serve", "stopped", 1, STOPPED),
        Finished("failed", 1, FAILED),
    ]
