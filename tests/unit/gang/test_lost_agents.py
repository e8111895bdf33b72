"""Agents that are lost, messages that are lost, and a driver that is started anew."""

from __future__ import annotations

from longboat.runtime.causes import CauseKind
from longboat.runtime.gang.gang_events import (
    NO_INCARNATION,
    Exited,
    Fence,
    Kill,
    Launch,
    RecordEvent,
    Start,
    StopRequest,
)
from longboat.runtime.gang.machine import Phase
from tests.unit.gang.driven import STOPPED, TOGETHER, W0, W1, Driven, ends, only, records, running

# Losing agents.


def test_a_lost_agent_ends_the_generation_and_is_replaced_when_the_others_have_ended() -> None:
    it = running()
    assert it.lost(W0) == [Kill(W1, (1, 0), 0.0)]
    actions = it.killed(W1)
    assert ends(actions) == {"worker-0": "lost", "worker-1": "killed"}
    assert only(actions, Launch) == [Launch(W0, it.address(W0))]
    assert not only(actions, Start)
    starts = only(it.join(W0), Start)
    assert [start.incarnation for start in starts] == [(2, 0), (2, 0)]


def test_all_agents_lost_at_once_cost_one_restart() -> None:
    it = running(restarts=1)
    it.lost(W0)
    actions = it.lost(W1)
    assert {launch.seat for launch in only(actions, Launch)} == {W0, W1}
    assert it.gang.budget == 0
    assert only(it.join(), Start)


def test_another_agent_at_the_seat_means_that_the_first_is_gone() -> None:
    it = running()
    it.agents[W0] = "second"
    assert only(it.seen(W0), Kill) == [Kill(W1, (1, 0), 0.0)]
    actions = it.killed(W1)
    assert not only(actions, Launch), "its successor is here already"
    assert [start.incarnation for start in only(actions, Start)] == [(2, 0), (2, 0)]


def test_a_silent_agent_is_fenced_and_nothing_starts_before_it_is_known_to_be_gone() -> None:
    it = running(lease=15)
    it.tick(10)
    it.seen(W1, (1, 0), running=True)
    fences = only(it.tick(5), Fence)
    assert fences == [Fence(W0)]
    assert not only(it.tick(1), Fence), "once"
    it.seen(W1, (1, 0), running=True)
    assert it.exit(W0) == [], "what a fenced agent says does not count any more"
    assert not it.gang.renews(W0)
    assert it.gang.renews(W1)
    assert it.lost(W0) == [Kill(W1, (1, 0), 0.0)]
    assert not only(it.all, Start)[2:]
    it.killed(W1)
    assert len(only(it.join(W0), Start)) == 2


def test_heartbeats_keep_the_lease() -> None:
    it = running(lease=15)
    for _ in range(10):
        it.tick(10)
        it.beat()
    assert not only(it.all, Fence)


def test_the_deadline_is_never_later_than_the_next_thing_that_is_due() -> None:
    assert running(lease=15).gang.deadline() == 115
    assert running(lease=15, timeout=5).gang.deadline() == 105
    assert running(lease=15, stall_after=3).gang.deadline() == 103


def test_a_start_that_was_lost_on_the_way_is_said_again() -> None:
    it = running()
    again = it.seen(W0, NO_INCARNATION)
    assert again == [only(it.all, Start)[0]]


def test_an_exit_that_was_lost_on_the_way_is_taken_from_the_heartbeat() -> None:
    it = running({W0: TOGETHER})
    it.seen(W0, (1, 0), ended=Exited(W0, (1, 0), 0))
    assert it.over.state == "succeeded"


def test_a_kill_that_was_lost_on_the_way_is_said_again() -> None:
    it = running(grace=9)
    it(StopRequest(STOPPED))
    assert it.seen(W0, (1, 0), running=True) == [Kill(W0, (1, 0), 9)]


# A driver that was started anew.


def test_a_new_driver_takes_up_a_generation_whose_agents_are_all_there() -> None:
    it = Driven(generation=3, recover=True)
    assert it.all == []
    assert it.seen(W0, (3, 0), running=True) == []
    assert it.seen(W1, (3, 0), running=True) == []
    assert it.gang.phase is Phase.RUNNING
    assert not only(it.all, RecordEvent), "the journal has its beginning already"
    it.exit(W0)
    it.exit(W1)
    assert it.over.state == "succeeded"


def test_a_new_driver_learns_of_ends_that_nobody_heard() -> None:
    it = Driven(generation=3, recover=True)
    it.seen(W0, (3, 0), ended=Exited(W0, (3, 0), 0, at=5))
    it.seen(W1, (3, 0), ended=Exited(W1, (3, 0), 0, at=6))
    assert it.over.state == "succeeded"
    assert ends(it.all) == {"worker-0": "succeeded", "worker-1": "succeeded"}


def test_a_new_driver_that_finds_a_successor_at_a_seat_begins_the_next_generation_without_cost() -> None:
    it = Driven(generation=3, recover=True, restarts=1)
    it.seen(W0, (3, 0), running=True)
    assert only(it.seen(W1, NO_INCARNATION), Kill)[0] == Kill(W0, (3, 0), 0.0)
    it.killed(W0)
    it.killed(W1)
    assert it.gang.generation == 4
    assert it.gang.budget == 1
    assert records(it.all, "gen.ended")[0]["cause"].kind is CauseKind.DRIVER_LOST


def test_a_new_driver_gives_those_who_do_not_come_back_up_after_the_lease() -> None:
    it = Driven(generation=3, recover=True, lease=15)
    it.tick(10)
    it.seen(W0, (3, 0), running=True)
    actions = it.tick(5)
    assert only(actions, Fence) == [Fence(W1)]
    assert only(actions, Kill)[0] == Kill(W0, (3, 0), 0.0)
    it.killed(W0)
    actions = it.lost(W1)
    (ended,) = records(it.all, "gen.ended")
    assert ended["cause"].kind is CauseKind.NODE_LOST
    assert "worker-1 did not reconnect" in ended["cause"].message
    assert only(actions, Launch) == [Launch(W1)]


def test_a_new_driver_goes_on_with_the_restarts_that_were_left() -> None:
    it = Driven({W0: TOGETHER}, generation=3, restarts=3, budget=0)
    it.join()
    it.exit(W0, 1)
    assert it.over.state == "failed"
