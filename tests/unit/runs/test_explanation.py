from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from longboat.runs.cause_texts import WORDS
from longboat.runs.explanation import explain
from longboat.runs.journal_fold import load
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.seat import Seat

New = Callable[..., Any]

BOOM = Cause(
    CauseKind.USER_ERROR,
    "the program ended with an error",
    "train",
    "worker",
    1,
    2,
    exit_code=1,
    frame="train.py:9 in step",
    error="ValueError: boom",
    lines=("about to fail",),
)


@pytest.mark.parametrize("kind", list(CauseKind))
def test_every_kind_of_cause_has_words_and_a_next_command(kind: CauseKind) -> None:
    assert WORDS[kind].phrase
    assert WORDS[kind].next


def test_a_failure_is_told_with_place_evidence_consequences_and_history(new_run: New) -> None:
    run = new_run()
    run.start(0, 1)
    killed = Cause(CauseKind.KILLED, "", "train", "worker", 0, 1, signal=9)
    run.rank("rank.ended", 0, state="killed", signal=9, cause=killed)
    run.event("gen.started", stage="train", gen=2, attempt=1, round=1)
    run.rank("rank.ended", 1, gen=2, state="failed", code=1, cause=BOOM)
    run.rank("rank.ended", 0, gen=2, state="killed", signal=9, because="worker-1")
    run.event("stage.ended", stage="train", state="failed", cause=BOOM)
    run.event("run.ended", state="failed", code=1, cause=BOOM)
    found = explain(load(run.dir), run.now)
    assert found.headline == f"{run.id} failed: train/worker-1: the program failed: ValueError: boom"
    assert found.where == "train/worker-1, generation 2"
    assert found.facts == (
        "at train.py:9 in step",
        "ValueError: boom",
        "the program ended with an error",
        "exit code 1",
    )
    assert found.lines == ("about to fail",)
    assert found.consequences == ("worker-0",)
    assert len(found.earlier) == 1
    assert "train/worker-0: killed by a signal (generation 1)" in found.earlier[0]
    assert found.next == (f"longboat logs {run.id} --role worker --rank 1 --tail 50", f"longboat run --resume {run.id}")


def test_a_run_that_goes_on_succeeded_or_is_lost_is_told_as_such(new_run: New) -> None:
    run = new_run()
    run.start(0, 1)
    run.driven()
    run.rank("rank.report", 0, points=[{"t": 1.0, "step": 3, "total": 10}])
    assert "is still running: train at step 3 of 10" in explain(load(run.dir), run.now).headline
    run.undriven()
    assert explain(load(run.dir), run.now).headline.startswith(f"{run.id} is lost: the driver stopped unexpectedly")
    run.succeed(0, 1)
    assert "nothing to explain" in explain(load(run.dir), run.now).headline


def test_a_cause_without_a_stage_is_placed_by_role_and_rank() -> None:
    cause = Cause(CauseKind.REFUSED, "no quota").at(Seat("", "driver", 0))
    assert cause.where == "driver-0"
    assert cause.at(Seat("train", "worker", 1)).where == "train/worker-1"
    assert Cause(CauseKind.REFUSED, "no quota", stage="train").where == "train"
