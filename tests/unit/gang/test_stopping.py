"""Stops, timeouts, faults and hangs."""

from __future__ import annotations

from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.gang.gang_events import (
    Action,
    DumpStacks,
    Fault,
    GangEnded,
    Kill,
    Progress,
    RecordEvent,
    Start,
    StopRequest,
)
from longboat.runtime.gang.machine import Phase
from longboat.runtime.gang.members import MemberState
from tests.unit.gang.driven import ALONE, PS, SERVES, STOPPED, TOGETHER, W0, W1, Driven, ends, only, records, running

# Stopping.


def test_a_stop_gives_grace_and_ends_as_stopped() -> None:
    it = running(grace=9)
    assert it(StopRequest(STOPPED)) == [Kill(W0, (1, 0), 9), Kill(W1, (1, 0), 9)]
    it.exit(W0, 0, asked=True)
    actions = it.killed(W1)
    assert ends(it.all) == {"worker-0": "stopped", "worker-1": "stopped"}
    assert records(actions, "gen.ended")[0]["state"] == "stopped"
    assert it.over == GangEnded("stopped", STOPPED)


def test_a_second_stop_kills_at_once() -> None:
    it = running(grace=9)
    it(StopRequest(STOPPED))
    assert it(StopRequest(STOPPED, now=True)) == [Kill(W0, (1, 0), 0.0), Kill(W1, (1, 0), 0.0)]


def test_a_later_gentle_stop_gives_no_grace_back() -> None:
    it = running(grace=9)
    it(StopRequest(STOPPED, now=True))
    assert {kill.grace for kill in only(it(StopRequest(STOPPED)), Kill)} == {0.0}


def test_a_stop_while_forming_ends_at_once_without_a_generation() -> None:
    it = Driven()
    it.join(W0)
    it(StopRequest(STOPPED))
    assert it.over == GangEnded("stopped", STOPPED)
    assert not only(it.all, RecordEvent)
    assert it.join(W1) == []


def test_a_stop_while_a_failed_generation_ends_leads_to_no_other() -> None:
    it = running()
    it.exit(W0, 1)
    it(StopRequest(STOPPED))
    it.killed(W1)
    assert it.over.state == "stopped"
    assert it.gang.generation == 1


def test_a_stop_while_forming_again_ends_it() -> None:
    it = running()
    it.lost(W0)
    it.killed(W1)
    assert it.gang.phase is Phase.FORMING
    it(StopRequest(STOPPED))
    assert it.over.state == "stopped"


def test_a_stop_while_servers_are_ended_after_success_leaves_the_success() -> None:
    it = running({W0: TOGETHER, PS: SERVES})
    it.exit(W0)
    it(StopRequest(STOPPED, now=True))
    it.killed(PS)
    assert it.over.state == "succeeded"


def test_an_agent_lost_while_it_is_being_stopped_is_part_of_the_stop() -> None:
    it = running()
    it(StopRequest(STOPPED))
    it.lost(W0)
    it.killed(W1)
    assert it.over == GangEnded("stopped", STOPPED)


def test_a_rank_alone_that_ends_during_a_stop_is_not_restarted() -> None:
    it = running({W0: ALONE, W1: ALONE})
    it(StopRequest(STOPPED))
    assert not only(it.exit(W0, 1), Start)
    it.killed(W1)
    assert it.over.state == "stopped"


# Time and faults.


def test_a_fault_from_outside_ends_the_stage_with_its_cause_and_no_restart() -> None:
    it = running()
    full = Cause(CauseKind.DISK_FULL, "the disk is full")
    assert only(it(Fault(full)), Kill)
    it.exit(W0, 1)
    it.killed(W1)
    assert it.over.cause is not None
    assert it.over.cause.kind is CauseKind.DISK_FULL
    assert it.gang.generation == 1


def test_a_fault_during_a_failing_generation_bars_the_next_one() -> None:
    it = running()
    it.exit(W0, 1)
    it(Fault(Cause(CauseKind.DISK_FULL, "the disk is full")))
    it.killed(W1)
    assert it.over.state == "failed"
    assert it.gang.generation == 1


def test_a_timeout_counts_from_the_first_start_and_is_not_restarted() -> None:
    it = running({W0: TOGETHER}, timeout=50, lease=1000, grace=4)
    it.now += 30
    it.exit(W0, 1)
    assert it.gang.generation == 2
    assert it.tick(19) == []
    assert only(it.tick(1), Kill) == [Kill(W0, (2, 0), 4)]
    it.killed(W0)
    assert it.over.cause is not None
    assert (it.over.cause.kind, it.over.cause.message) == (
        CauseKind.TIMED_OUT,
        "the stage ran longer than its timeout of 50 s",
    )


def stalled(it: Driven) -> list[Action]:
    """The stacks have been asked for, and what comes after the wait for them."""
    dumps = only(it.tick(1.0), DumpStacks)
    assert {dump.seat for dump in dumps} == {seat for seat, m in it.gang.members.items() if m.at is MemberState.RUNNING}
    assert it.tick(1.0) == []
    return it.tick(1.0)


def test_a_gang_in_which_nobody_ever_reports_is_stalled_after_its_patience() -> None:
    it = running(stall_after=20, lease=1000, stacks_wait=2)
    assert it.tick(19) == []
    assert only(stalled(it), Kill) == [Kill(W0, (1, 0), 0.0), Kill(W1, (1, 0), 0.0)]
    actions = it.killed(W0, W1)
    assert records(actions, "gen.ended")[0]["cause"].kind is CauseKind.STALLED
    assert records(actions, "gen.started") == [{"gen": 2, "reason": "stalled"}]


def test_progress_puts_the_stall_off_and_progress_during_the_wait_calls_it_off() -> None:
    it = running(stall_after=20, lease=1000, stacks_wait=2)
    it.tick(15)
    for seat in (W0, W1):
        it(Progress(seat, 1, 1))
    assert it.tick(19) == []
    assert only(it.tick(1), DumpStacks)
    for seat in (W0, W1):
        it(Progress(seat, 1, 2))
    assert not only(it.tick(10), Kill)
    assert it.gang.phase is Phase.RUNNING


def test_one_rank_that_fell_silent_hangs_all_that_wait_for_it() -> None:
    it = running(stall_after=20, lease=1000)
    for seat in (W0, W1):
        it(Progress(seat, 1, 1))
    for _ in range(20):
        it.tick(1)
        it(Progress(W0, 1, 2))
    assert {dump.seat for dump in only(it.all, DumpStacks)} == {W0, W1}


def test_a_rank_that_reports_for_all_is_enough() -> None:
    it = running(stall_after=20, lease=1000)
    for _ in range(60):
        it.tick(1)
        it(Progress(W0, 1, 2))
    assert not only(it.all, DumpStacks)


def test_a_silent_rank_of_its_own_is_ended_and_restarted_alone() -> None:
    it = running({W0: ALONE, W1: ALONE}, stall_after=20, lease=1000, stacks_wait=2)
    for seat in (W0, W1):
        it(Progress(seat, 1, 1))
    it.tick(19)
    it(Progress(W0, 1, 2))
    assert it.tick(1) == [DumpStacks(W1, (1, 0))]
    assert it.tick(2) == [Kill(W1, (1, 0), 0.0)]
    assert it.seen(W1, (1, 0), running=True) == [Kill(W1, (1, 0), 0.0)], "said again until it is done"
    actions = it.killed(W1)
    assert ends(actions) == {"worker-1": "failed"}
    assert records(actions, "rank.ended")[0]["cause"].kind is CauseKind.STALLED
    assert [(start.seat, start.incarnation) for start in only(actions, Start)] == [(W1, (1, 1))]


def test_a_stall_fails_the_stage_where_the_plan_says_so() -> None:
    it = running(stall_after=20, lease=1000, stacks_wait=2, restart_on_stall=False)
    it.tick(19)
    stalled(it)
    it.killed(W0, W1)
    assert it.over.state == "failed"
    assert it.over.cause is not None
    assert it.over.cause.kind is CauseKind.STALLED
    assert it.gang.generation == 1
