"""Bugs that the simulation found in the gang, each as the shortest sequence that showed it."""

from __future__ import annotations

from typing import Any

from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.gang.gang_events import (
    NO_INCARNATION,
    Action,
    AgentLost,
    DumpStacks,
    Exited,
    Fence,
    GangEnded,
    GangRules,
    Heartbeat,
    Incarnation,
    Kill,
    Launch,
    PreemptionNotice,
    Progress,
    RecordEvent,
    Start,
    StopRequest,
    Tick,
)
from longboat.runtime.gang.machine import Gang, Phase
from longboat.runtime.rank_env import Address
from longboat.runtime.seat import Seat

W0, W1, CHIEF = Seat("train", "worker", 0), Seat("train", "worker", 1), Seat("train", "chief", 0)
TOGETHER, ALONE = (True, False), (True, True)
GONE = Cause(CauseKind.AGENT_LOST, "the agent ended")
FAILED = Cause(CauseKind.USER_ERROR, "it failed", exit_code=1)
LEASE = 15.0


def gang(kind: tuple[bool, bool], *, recover: bool = False, **rules: Any) -> Gang:
    made = Gang(GangRules({W0: kind, W1: kind}, lease=LEASE, **rules), 1 if recover else 0, 0.0, recover)
    made.begin(0.0)
    return made


def seen(
    seat: Seat,
    incarnation: Incarnation = NO_INCARNATION,
    running: bool = False,
    ended: Exited | None = None,
    agent: str = "a",
    at: float = 0.0,
) -> Heartbeat:
    return Heartbeat(seat, agent, Address(f"10.0.0.{seat.rank}", (1, 2, 3)), incarnation, running, ended, at)


def formed(kind: tuple[bool, bool], **rules: Any) -> Gang:
    made = gang(kind, **rules)
    for seat in (W0, W1):
        made.handle(seen(seat), 1.0)
    return made


def exited(seat: Seat, incarnation: Incarnation, code: int, *, at: float = 1.0, asked: bool = False) -> Exited:
    return Exited(seat, incarnation, code, 0, at, asked, FAILED if code > 0 else None)


def of(kind: type, actions: list[Action]) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]


def test_an_agent_that_has_not_yet_said_that_it_runs_is_not_taken_for_one_that_never_will() -> None:
    it = formed(TOGETHER)
    it.handle(exited(W0, (1, 0), 1), 2.0)
    said_before_its_start_arrived = it.handle(seen(W1), 2.1)
    assert said_before_its_start_arrived == [Kill(W1, (1, 0), 0.0)]
    assert it.phase is Phase.ENDING
    ended = it.handle(exited(W1, (1, 0), -1, asked=True), 2.2)
    assert [start.incarnation for start in of(Start, ended)] == [(2, 0), (2, 0)]


def test_a_rank_that_has_finished_is_not_run_again_when_its_agent_comes_back() -> None:
    it = formed(ALONE)
    it.handle(exited(W0, (1, 0), 0), 2.0)
    assert of(Start, it.handle(seen(W0, agent="b"), 3.0)) == []
    assert of(GangEnded, it.handle(exited(W0, (1, 1), 0), 4.0)) == []
    assert of(GangEnded, it.handle(exited(W1, (1, 0), 0), 5.0)) == [GangEnded("succeeded")]


def test_a_launch_that_failed_while_its_peers_train_on_is_tried_again() -> None:
    it = formed(ALONE)
    assert of(Launch, it.handle(AgentLost(W0, GONE), 2.0))
    assert of(Launch, it.handle(AgentLost(W0, GONE), 3.0))


def test_no_second_agent_is_launched_while_one_is_on_its_way() -> None:
    it = Gang(GangRules({W0: ALONE, CHIEF: TOGETHER}), 0, 0.0)
    it.begin(0.0)
    for seat in (W0, CHIEF):
        it.handle(seen(seat), 1.0)
    assert of(Launch, it.handle(AgentLost(W0, GONE), 2.0))
    fell = it.handle(exited(CHIEF, (1, 0), 1), 3.0)
    assert of(RecordEvent, fell)
    assert of(Launch, fell) == []


def test_the_successor_of_a_lost_agent_that_is_there_already_is_not_launched_once_more() -> None:
    it = formed(ALONE)
    actions = it.handle(seen(W0, agent="b"), 2.0)
    assert of(Launch, actions) == []
    assert [start.incarnation for start in of(Start, actions)] == [(1, 1)]


def test_once_fenced_only_its_death_counts() -> None:
    it = formed(TOGETHER)
    it.handle(seen(W0, (1, 0), running=True), LEASE)
    assert of(Fence, it.handle(Tick(), 1.0 + LEASE)) == [Fence(W1)]
    assert not it.renews(W1)
    assert it.handle(seen(W1, (1, 0), running=True), 2.0 + LEASE) == []
    assert it.handle(seen(W1, agent="took its place"), 2.1 + LEASE) == []
    assert it.handle(exited(W1, (1, 0), 0), 2.2 + LEASE) == []
    assert of(Kill, it.handle(AgentLost(W1, GONE, 3.0), 3.0 + LEASE)) == [Kill(W0, (1, 0), 0.0)]


def test_a_fenced_agent_without_a_process_is_no_part_of_the_next_generation() -> None:
    it = gang(TOGETHER)
    it.handle(seen(W0), 1.0)
    assert of(Fence, it.handle(Tick(), 1.0 + LEASE)) == [Fence(W0)]
    assert of(Start, it.handle(seen(W1), 2.0 + LEASE)) == []
    assert of(Launch, it.handle(AgentLost(W0, GONE), 3.0 + LEASE)) == [Launch(W0, Address("10.0.0.0", (1, 2, 3)))]


def test_a_silent_machine_is_the_cause_although_its_peers_were_heard_to_fall_first() -> None:
    it = formed(TOGETHER)
    it.handle(seen(W1, (1, 0), running=True, at=5.0), 5.0)
    it.handle(exited(W0, (1, 0), 1, at=6.0), 6.0)
    it.handle(Tick(), 5.0 + LEASE)
    ended = it.handle(AgentLost(W1, Cause(CauseKind.NODE_LOST, "silent"), 30.0), 30.0)
    assert of(RecordEvent, ended)[-1].keys["cause"].kind is CauseKind.NODE_LOST


def test_the_fall_of_one_that_restarts_alone_is_not_the_cause_of_what_ends_for_all() -> None:
    it = Gang(GangRules({CHIEF: TOGETHER, W0: ALONE}), 0, 0.0)
    it.begin(0.0)
    for seat in (CHIEF, W0):
        it.handle(seen(seat), 1.0)
    it.handle(exited(CHIEF, (1, 0), 1, at=3.0), 3.0)
    ended = it.handle(exited(W0, (1, 0), 2, at=2.9), 3.1)
    cause = next(record.keys["cause"] for record in of(RecordEvent, ended) if record.ev == "gen.ended")
    assert cause.seat == CHIEF


def test_a_hung_rank_is_ended_although_others_report() -> None:
    it = formed(ALONE, stall_after=5.0, stacks_wait=2.0)
    it.handle(Progress(W0, 1, 1), 2.0)
    for second in range(2, 8):
        it.handle(Progress(W1, 1, second), float(second))
    assert [ask.seat for ask in of(DumpStacks, it.handle(Tick(), 7.5))] == [W0]
    it.handle(Progress(W1, 1, 8), 8.0)
    assert it.handle(Tick(), 9.5) == [Kill(W0, (1, 0), 0.0)]


def test_a_rank_that_reported_and_hangs_from_the_start_of_its_next_life_is_noticed() -> None:
    it = formed(ALONE, stall_after=5.0)
    it.handle(Progress(W0, 1, 1), 2.0)
    it.handle(exited(W0, (1, 0), 1), 3.0)
    it.handle(Progress(W1, 1, 1), 8.0)
    assert [ask.incarnation for ask in of(DumpStacks, it.handle(Tick(), 8.5))] == [(1, 1)]


def test_an_end_that_was_asked_for_is_asked_for_again() -> None:
    it = formed(ALONE, grace=4.0)
    assert it.handle(PreemptionNotice(W0), 2.0) == [Kill(W0, (1, 0), 4.0)]
    assert it.handle(seen(W0, (1, 0), running=True), 3.0) == [Kill(W0, (1, 0), 4.0)]


def test_a_new_driver_does_not_start_a_generation_for_the_second_time() -> None:
    it = gang(TOGETHER, recover=True)
    it.handle(seen(W0, (1, 0), running=True), 1.0)
    actions = it.handle(seen(W1, agent="perhaps a successor"), 2.0)
    assert of(Start, actions) == []
    assert {kill.seat for kill in of(Kill, actions)} == {W0, W1}
    it.handle(exited(W0, (1, 0), -1, asked=True), 3.0)
    ended = it.handle(exited(W1, (1, 0), -1, asked=True), 3.1)
    assert [start.incarnation for start in of(Start, ended)] == [(2, 0), (2, 0)]
    assert it.budget == it.rules.restarts


def test_a_new_driver_does_not_take_an_end_that_its_predecessor_asked_for_as_success() -> None:
    it = gang(TOGETHER, recover=True)
    for seat in (W0, W1):
        it.handle(seen(seat, (1, 0), running=True), 1.0)
    assert it.phase is Phase.RUNNING
    it.handle(exited(W0, (1, 0), 0, asked=True), 2.0)
    ended = it.handle(exited(W1, (1, 0), 0, asked=True), 2.1)
    assert of(GangEnded, ended) == []
    assert of(RecordEvent, ended)[-2].keys["cause"].kind is CauseKind.DRIVER_LOST


def test_a_new_driver_names_the_failure_that_its_predecessor_was_about_to_name() -> None:
    it = gang(TOGETHER, recover=True)
    it.handle(seen(W1, (1, 0), ended=exited(W1, (1, 0), -1, at=3.0, asked=True)), 4.0)
    ended = it.handle(seen(W0, (1, 0), ended=exited(W0, (1, 0), 1, at=2.0)), 4.1)
    cause = next(record.keys["cause"] for record in of(RecordEvent, ended) if record.ev == "gen.ended")
    assert (cause.kind, cause.rank) == (CauseKind.USER_ERROR, 0)


def test_a_stop_while_a_new_driver_looks_for_its_agents_ends_every_life_that_they_have() -> None:
    it = gang(ALONE, recover=True, grace=3.0)
    it.handle(StopRequest(Cause(CauseKind.STOPPED, "stopped")), 1.0)
    assert it.handle(seen(W0, (1, 4), running=True), 2.0) == [Kill(W0, (1, 4), 3.0)]
    it.handle(exited(W0, (1, 4), 0, asked=True), 3.0)
    assert of(GangEnded, it.handle(exited(W1, (1, 0), 0, asked=True), 3.1)) == []
    over = it.handle(seen(W1, (1, 0), ended=exited(W1, (1, 0), 0, asked=True)), 3.2)
    assert [each.state for each in of(GangEnded, over)] == ["stopped"]


def test_a_new_driver_that_waits_in_vain_fences_the_missing_and_ends_the_generation() -> None:
    it = gang(TOGETHER, recover=True)
    it.handle(seen(W0, (1, 0), running=True), 1.0)
    actions = it.handle(Tick(), LEASE)
    assert of(Fence, actions) == [Fence(W1)]
    it.handle(exited(W0, (1, 0), -1, asked=True), LEASE + 1)
    lost = it.handle(AgentLost(W1, Cause(CauseKind.NODE_LOST, "silent")), LEASE + 5)
    assert of(Launch, lost) == [Launch(W1, None)]


def test_a_cause_that_turns_out_to_be_hopeless_is_not_followed_by_a_restart() -> None:
    it = formed(TOGETHER)
    it.handle(exited(W0, (1, 0), 1, at=2.0), 2.0)
    missing = Exited(W1, (1, 0), -1, 0, 1.5, False, Cause(CauseKind.NOT_FOUND, "no such command"))
    assert [over.cause.kind for over in of(GangEnded, it.handle(missing, 2.1))] == [CauseKind.NOT_FOUND]


def test_agents_that_have_lived_more_than_a_forming_gang_knows_of_are_started_above_that() -> None:
    it = gang(TOGETHER)
    assert it.handle(seen(W0, (3, 1), running=True), 1.0) == [Kill(W0, (3, 1), 0.0)]
    assert of(Start, it.handle(seen(W0, (3, 1), ended=exited(W0, (3, 1), -1, asked=True)), 1.1)) == []
    started = it.handle(seen(W1, (2, 0)), 1.2)
    assert [start.incarnation for start in of(Start, started)] == [(4, 0), (4, 0)]
    assert of(RecordEvent, started)[0].keys["gen"] == 4


def test_a_new_driver_whose_journal_lost_a_generation_ends_it_by_its_own_number() -> None:
    it = gang(TOGETHER, recover=True)
    it.handle(seen(W0, (1, 0), running=True), 1.0)
    killed = it.handle(seen(W1, (2, 3), running=True), 1.1)
    assert of(Kill, killed) == [Kill(W0, (2, 0), 0.0), Kill(W1, (2, 3), 0.0)]
    assert of(Start, it.handle(exited(W0, (2, 0), -1, asked=True), 1.2)) == []
    started = it.handle(exited(W1, (2, 3), -1, asked=True), 1.3)
    assert [start.incarnation for start in of(Start, started)] == [(3, 0), (3, 0)]
