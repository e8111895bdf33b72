"""How a gang comes together, and how it succeeds."""

from __future__ import annotations

from longboat.runtime.causes import CauseKind
from longboat.runtime.gang.gang_events import NO_INCARNATION, GangEnded, Heartbeat, Kill, Launch, RecordEvent, Start
from longboat.runtime.gang.machine import Phase
from longboat.runtime.rank_env import Address
from longboat.runtime.seat import Seat
from tests.unit.gang.driven import CHIEF, PS, SERVES, TOGETHER, W0, W1, W2, Driven, ends, only, records, running

# Coming together.


def test_it_asks_for_an_agent_for_every_seat() -> None:
    it = Driven()
    assert it.all == [Launch(W0), Launch(W1)]


def test_nobody_starts_before_all_are_there_and_then_all_start_with_one_world() -> None:
    it = Driven({W0: TOGETHER, W1: TOGETHER, PS: SERVES})
    assert it.join(W1, PS) == []
    actions = it.join(W0)
    assert actions[0] == RecordEvent("gen.started", {"gen": 1, "reason": "first"}), "recorded before it is used"
    starts = only(actions, Start)
    assert [(start.seat, start.incarnation) for start in starts] == [(W0, (1, 0)), (W1, (1, 0)), (PS, (1, 0))]
    assert starts[0].peers == starts[1].peers == starts[2].peers
    assert starts[0].peers == {"worker": (it.address(W0), it.address(W1)), "ps": (it.address(PS),)}


def test_peers_stand_in_the_order_of_their_numbers_also_beyond_ten() -> None:
    seats = {Seat("train", "worker", rank): TOGETHER for rank in reversed(range(12))}
    it = Driven(seats)
    starts = only(it.join(), Start)
    assert starts[0].peers["worker"] == tuple(it.address(Seat("train", "worker", rank)) for rank in range(12))


def test_joining_twice_and_strangers_are_harmless() -> None:
    it = Driven()
    it.join(W0)
    assert it.join(W0) == []
    it.agents[W2] = "stranger"
    assert it(Heartbeat(W2, "stranger", Address("10.0.0.9", (1, 2, 3)), NO_INCARNATION, False)) == []
    assert len(only(it.join(W1), Start)) == 2


def test_an_agent_lost_while_forming_costs_a_restart_and_is_asked_for_again() -> None:
    it = Driven(restarts=1)
    it.join(W0)
    assert it.lost(W0) == [Launch(W0, it.address(W0))]
    assert it.gang.budget == 0
    it.join(W0)
    assert only(it.join(W1), Start)


def test_an_agent_that_never_comes_up_ends_the_stage_when_the_budget_is_spent() -> None:
    it = Driven(restarts=2)
    assert only(it.lost(W0), Launch)
    assert only(it.lost(W0), Launch)
    it.lost(W0)
    assert it.over.state == "failed"
    assert it.over.cause is not None
    assert it.over.cause.kind is CauseKind.AGENT_LOST


def test_a_gang_that_does_not_come_together_fails_and_names_who_is_missing() -> None:
    it = Driven({W0: TOGETHER, W1: TOGETHER, W2: TOGETHER}, form_timeout=60, lease=1000)
    it.join(W1)
    assert it.gang.deadline() == 160
    assert it.tick(59.9) == []
    it.tick(0.1)
    assert it.over.cause is not None
    assert it.over.cause.kind is CauseKind.LOST_RENDEZVOUS
    assert it.over.cause.message == "the gang did not form within 60 s: waiting for worker-0, worker-2"


def test_a_gang_that_does_not_come_together_again_says_so_and_not_why_the_one_before_fell() -> None:
    it = Driven(form_timeout=60, lease=1000, restarts=5)
    it.join(W0, W1)
    it.lost(W1)
    it.killed(W0)
    it.tick(60)
    assert it.over.cause is not None
    assert it.over.cause.kind is CauseKind.LOST_RENDEZVOUS


def test_an_agent_that_still_runs_an_old_life_is_made_to_end_it_before_it_counts() -> None:
    it = Driven(generation=4)
    it.join(W0)
    assert it.seen(W1, (4, 0), running=True) == [Kill(W1, (4, 0), 0.0)]
    assert it.gang.phase is Phase.FORMING
    starts = only(it.seen(W1, (4, 0), running=False), Start)
    assert [start.incarnation for start in starts] == [(5, 0), (5, 0)]


# Succeeding.


def test_the_stage_succeeds_when_every_rank_that_must_finish_has_exited_0() -> None:
    it = running()
    assert ends(it.exit(W0)) == {"worker-0": "succeeded"}
    actions = it.exit(W1)
    assert ends(actions) == {"worker-1": "succeeded"}
    assert records(actions, "gen.ended")[0]["state"] == "succeeded"
    assert it.over == GangEnded("succeeded", None)


def test_servers_are_ended_with_grace_and_count_as_stopped_when_the_others_are_done() -> None:
    it = running({W0: TOGETHER, PS: SERVES}, grace=7)
    assert only(it.exit(W0), Kill) == [Kill(PS, (1, 0), 7)]
    actions = it.killed(PS)
    assert ends(actions) == {"ps-0": "stopped"}
    assert it.over.state == "succeeded"


def test_a_server_that_falls_while_it_is_being_ended_does_not_spoil_the_success() -> None:
    it = running({W0: TOGETHER, PS: SERVES})
    it.exit(W0)
    it.exit(PS, 1)
    assert it.over.state == "succeeded"


def test_a_servers_own_clean_end_is_no_failure() -> None:
    it = running({W0: TOGETHER, PS: SERVES})
    assert ends(it.exit(PS)) == {"ps-0": "succeeded"}
    it.exit(W0)
    assert it.over.state == "succeeded"


def test_a_chief_decides_alone() -> None:
    it = running({CHIEF: TOGETHER, W0: (False, True), PS: SERVES})
    kills = only(it.exit(CHIEF), Kill)
    assert {kill.seat for kill in kills} == {W0, PS}
    it.killed(W0, PS)
    assert it.over.state == "succeeded"
    assert ends(it.all) == {"chief-0": "succeeded", "worker-0": "stopped", "ps-0": "stopped"}
