"""A gang that fails again and again without getting anywhere waits ever longer before it starts again."""

from __future__ import annotations

import math
from collections.abc import Sequence

from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.gang.gang_events import Action, CheckpointComplete, Launch, Progress, Start, StopRequest
from longboat.runtime.gang.machine import Phase
from longboat.runtime.seat import Seat
from tests.unit.gang.driven import GONE, STOPPED, TOGETHER, W0, W1, W2, Driven, records, running


def fail(it: Driven, number: int) -> float:
    """Fails in a way of its own; how long the gang waits before it starts again."""
    it.exit(W0, -1, Cause(CauseKind.KILLED, f"killed {number}", signal=9), signal=9)
    return max(0.0, (it.gang.deadline() or 0.0) - it.now) if it.gang.phase is Phase.FORMING else 0.0


def wait(it: Driven, seconds: float) -> None:
    """Until the next generation, with a heartbeat a second."""
    due = it.now + seconds
    while it.now < due:
        assert it.gang.phase is Phase.FORMING
        it.now += min(1.0, due - it.now)
        it.beat()
        it.tick(0.0)
    assert it.gang.phase is Phase.RUNNING


def paused(it: Driven, number: int) -> float:
    fail(it, number)
    notes = records(it.all, "note")
    if it.gang.phase is Phase.RUNNING:
        return 0.0
    seconds = float(notes[-1]["text"].split()[2])
    wait(it, seconds)
    return seconds


def test_the_pause_doubles_from_the_third_failure_on_and_has_a_bound() -> None:
    it = running({W0: TOGETHER}, restarts=100)
    assert [paused(it, number) for number in range(11)] == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    text = "restarting in 1 s: ended 3 times in a row without progress"
    assert records(it.all, "note")[0] == {"text": text, "level": "warning"}


def test_progress_and_checkpoints_end_the_waiting() -> None:
    it = running({W0: TOGETHER}, restarts=100)
    assert [paused(it, number) for number in range(4)] == [0, 0, 1, 2]
    it(Progress(W0, it.gang.generation, 7))
    assert [paused(it, number) for number in range(4)] == [0, 0, 0, 1]
    it(Progress(W0, it.gang.generation, 7))
    assert paused(it, 4) == 2, "a step that was reached before is no progress"
    it(CheckpointComplete())
    assert [paused(it, number) for number in range(3)] == [0, 0, 1]


TAKEN = Cause(CauseKind.PREEMPTED, "its machine was preempted")


def taken(it: Driven, *seats: Seat) -> list[Action]:
    """The agents of these seats go with their machine."""
    return [action for seat in seats for action in it.lost(seat, TAKEN.at(seat))]


def launches(actions: Sequence[Action]) -> int:
    return sum(isinstance(action, Launch) for action in actions)


def test_what_the_job_is_not_to_blame_for_costs_nothing_and_is_waited_for_when_it_goes_on_and_on() -> None:
    it = running({W0: TOGETHER}, restarts=3)
    for _ in range(2):
        taken(it, W0)
        assert any(isinstance(action, Start) for action in it.join())
    for seconds in (1, 2, 4):
        taken(it, W0)
        assert not any(isinstance(action, Start) for action in it.join())
        wait(it, seconds)
    assert it.gang.budget == 3
    it(Progress(W0, it.gang.generation, 7))
    taken(it, W0)
    assert any(isinstance(action, Start) for action in it.join())


def test_a_machine_with_many_ranks_that_goes_away_counts_once() -> None:
    it = running({W0: TOGETHER, W1: TOGETHER, W2: TOGETHER}, restarts=3)
    for _ in range(2):
        it.lost(W0, TAKEN.at(W0))
        it.killed(W1, W2)
        assert launches(taken(it, W1, W2)) == 2, "at once"
        assert any(isinstance(action, Start) for action in it.join())


def test_agents_that_go_before_the_gang_is_formed_are_not_asked_for_ever_faster() -> None:
    it = Driven({W0: TOGETHER, W1: TOGETHER}, restarts=3, form_timeout=math.inf)
    assert [launches(taken(it, W0)) for _ in range(3)] == [1, 1, 0]
    assert it.gang.deadline() == it.now + 1.0
    assert launches(it.tick(0.9)) == 0
    assert launches(it.tick(0.1)) == 1
    assert launches(taken(it, W0)) == 0
    assert launches(it.tick(2.0)) == 1
    assert it.gang.budget == 3
    assert any(isinstance(action, Start) for action in it.join())


def test_an_agent_that_comes_by_itself_is_not_asked_for_again() -> None:
    it = Driven({W0: TOGETHER, W1: TOGETHER}, restarts=3, form_timeout=math.inf)
    taken(it, W0), taken(it, W0), taken(it, W0)
    it.join(W0)
    assert launches(it.tick(1.0)) == 0


def test_a_stop_during_the_pause_ends_the_gang_at_once() -> None:
    it = running({W0: TOGETHER}, restarts=100)
    for number in range(4):
        paused(it, number)
    fail(it, 9)
    assert it.gang.phase is Phase.FORMING
    it(StopRequest(STOPPED))
    assert it.over.state == "stopped"


def test_an_agent_that_comes_back_during_the_pause_does_not_shorten_it() -> None:
    it = running({W0: TOGETHER}, restarts=100)
    for _ in range(2):
        it.lost(W0, GONE)
        it.join()
    it.lost(W0, GONE)
    assert not any(isinstance(action, Start) for action in it.join())
    wait(it, 1.0)
