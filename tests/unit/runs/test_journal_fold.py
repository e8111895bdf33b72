from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from longboat.runs.journal_fold import fold, load
from longboat.runs.run_state import RunState, StageState
from longboat.runs.watch import RunWatch
from longboat.runtime import journal
from longboat.runtime.causes import Cause, CauseKind

New = Callable[..., Any]

BOOM = Cause(CauseKind.USER_ERROR, "exit code 1", "train", "worker", 1, 1, exit_code=1, error="ValueError: boom")


def train_of(run: RunState) -> StageState:
    return next(stage for stage in run.stages if stage.name == "train")


def test_ranks_of_the_plan_wait_until_they_start(new_run: New) -> None:
    run = new_run(train=3)
    run.start(0)
    run.driven()
    state = load(run.dir)
    assert [rank.state for rank in train_of(state).ranks] == ["running", "waiting", "waiting"]
    assert (state.state, state.over, state.code) == ("running", False, None)


def test_a_run_without_an_end_and_without_a_driver_is_lost(new_run: New) -> None:
    run = new_run()
    run.start(0, 1)
    state = load(run.dir)
    assert state.state == "lost"
    assert state.code == 1
    assert state.cause is not None
    assert state.cause.kind is CauseKind.DRIVER_LOST
    assert [rank.state for rank in train_of(state).ranks] == ["lost", "lost"]


def test_a_run_that_died_at_birth_is_lost_and_a_newborn_is_not(new_run: New) -> None:
    run = new_run()
    (run.dir / journal.FILE).unlink()
    assert load(run.dir).state == "starting"
    long_ago = time.time() - 60
    os.utime(run.dir, (long_ago, long_ago))
    assert load(run.dir).state == "lost"


def test_progress_is_of_the_first_rank_that_knows_the_total(new_run: New) -> None:
    run = new_run()
    run.start(0, 1)
    run.rank("rank.report", 0, points=[{"t": 1.0, "step": 9, "loss": 0.5}])
    run.rank("rank.report", 1, points=[{"t": 1.0, "step": 3, "total": 10, "loss": 0.7, "accuracy": 0.1}])
    run.rank("rank.report", 0, points=[{"t": 2.0, "step": 10, "loss": "nan"}, {"t": 2.0, "loss": 0.4}])
    stage = train_of(load(run.dir))
    assert (stage.step, stage.total) == (3, 10)
    assert stage.metrics == {"loss": 0.4, "accuracy": 0.1}


def test_the_first_failure_is_kept_once_and_what_fell_after_it_is_a_consequence(new_run: New) -> None:
    run = new_run()
    run.start(0, 1)
    run.rank("rank.ended", 1, state="failed", code=1, cause=BOOM)
    run.rank("rank.ended", 0, state="killed", signal=9, because="worker-1")
    run.event("gen.ended", stage="train", gen=1, state="failed", cause=BOOM)
    stage = train_of(load(run.dir))
    assert [failure.cause for failure in stage.failures] == [BOOM]
    assert stage.ranks[0].because == "worker-1"
    assert stage.ranks[0].signal == 9


def test_a_new_generation_counts_as_a_restart_and_a_new_attempt_does_not(new_run: New) -> None:
    run = new_run()
    run.start(0, 1)
    run.rank("rank.ended", 1, state="failed", code=1, cause=BOOM)
    run.event("gen.started", stage="train", gen=2, attempt=1, round=1)
    run.rank("rank.started", 1, gen=2, pid=5)
    assert (train_of(load(run.dir)).ranks[1].restarts, train_of(load(run.dir)).generation) == (1, 2)
    run.event("stage.started", stage="train", attempt=2, round=1)
    run.event("gen.started", stage="train", gen=3, attempt=2, round=1)
    run.rank("rank.started", 1, gen=3, pid=6)
    rank = train_of(load(run.dir)).ranks[1]
    assert (rank.restarts, rank.gen, rank.cause, rank.code) == (0, 3, None, None)


def test_a_resumed_run_lives_again_and_remembers_that_its_driver_was_lost(new_run: New) -> None:
    run = new_run()
    run.start(0, 1)
    run.event("run.started", run=run.id, pid=78, resumed=True)
    run.event("stage.started", stage="train", attempt=1, round=1)
    run.driven()
    state = load(run.dir)
    assert (state.state, state.resumes, state.pid) == ("running", 1, 78)
    assert [failure.cause.kind for failure in train_of(state).failures] == [CauseKind.DRIVER_LOST]


def test_events_that_are_strange_change_nothing() -> None:
    strange: list[dict[str, Any]] = [
        {"ev": "rank.started"},
        {"ev": "rank.report", "stage": "s", "role": "w", "rank": "x", "points": 3},
        {"ev": "stage.ended", "t": "noon"},
        {"ev": "from.the.future", "t": 1},
        {"ev": "run.ended", "t": 2.0, "state": "failed", "cause": {"kind": "not_known_yet", "message": "m"}},
    ]
    state = fold(strange, "demo-babab")
    assert (state.state, state.code) == ("failed", 1)
    assert state.cause is not None
    assert state.cause.kind is CauseKind.INTERNAL


def test_a_half_written_last_line_is_not_read(new_run: New) -> None:
    run = new_run()
    run.start(0, 1)
    run.driven()
    with open(run.dir / journal.FILE, "ab") as file:
        file.write(b'{"t":1,"n":9,"ev":"run.ended","state":"fai')
    assert load(run.dir).state == "running"


def test_a_watch_sees_the_end_that_was_written_just_before_the_driver_went(new_run: New) -> None:
    run = new_run()
    run.start(0, 1)
    run.driven()
    watch = RunWatch(run.dir)
    watch.poll()
    assert not watch.over
    run.succeed(0, 1)
    run.undriven()
    watch.poll()
    assert (watch.over, watch.state.state) == (True, "succeeded")


def test_an_end_from_before_a_resume_does_not_end_the_watch(new_run: New, tmp_path: Path) -> None:
    run = new_run()
    run.start(0)
    run.event("run.ended", state="failed", code=1)
    watch = RunWatch(run.dir, after=len(journal.read(str(run.dir))))
    watch.poll()
    assert not watch.over
    run.event("run.started", run=run.id, pid=78, resumed=True)
    run.event("run.ended", state="succeeded", code=0)
    watch.poll()
    assert (watch.over, watch.state.code) == (True, 0)
