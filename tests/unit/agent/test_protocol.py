"""The agent's side of the protocol: which messages it obeys, and when its lease is over."""

from __future__ import annotations

from typing import Any

from longboat.runtime.agent.protocol import AgentOrder, AgentProtocol
from longboat.runtime.messages import RankExit


def duty(lease: float = 10.0) -> AgentProtocol:
    return AgentProtocol("name", ["10.0.0.1", [1, 2, 3]], lease, 0.0)


def told(it: AgentProtocol, kind: str, now: float = 1.0, **keys: Any) -> AgentOrder:
    return it.order({"is": kind, **keys}, now, now)


def test_a_life_is_started_once_and_only_forward() -> None:
    it = duty()
    assert told(it, "start", incarnation=[2, 0]) is AgentOrder.START
    it.begun((2, 0))
    assert told(it, "start", incarnation=[3, 0]) is AgentOrder.NOTHING
    it.ended(RankExit(code=0, signal=0, at=0.0, asked=False, cause=None))
    assert told(it, "start", incarnation=[2, 0]) is AgentOrder.NOTHING
    assert told(it, "start", incarnation=[1, 5]) is AgentOrder.NOTHING
    assert told(it, "start", incarnation=[2, 1]) is AgentOrder.START


def test_a_life_that_was_ended_before_it_began_never_begins() -> None:
    it = duty()
    assert told(it, "kill", incarnation=[1, 0], grace=0) is AgentOrder.SAY_ENDED
    assert it.exit is not None
    assert it.exit["asked"]
    assert told(it, "start", incarnation=[1, 0]) is AgentOrder.NOTHING
    assert told(it, "kill", incarnation=[1, 0], grace=0) is AgentOrder.NOTHING


def test_a_kill_said_again_is_heard_again_only_when_it_leaves_less_grace() -> None:
    it = duty()
    it.begun((1, 0))
    assert told(it, "kill", incarnation=[1, 0], grace=5) is AgentOrder.KILL
    assert told(it, "kill", incarnation=[1, 0], grace=5) is AgentOrder.NOTHING
    assert told(it, "kill", incarnation=[1, 0], grace=0) is AgentOrder.KILL


def test_a_kill_of_an_older_life_leaves_the_present_one_alone() -> None:
    it = duty()
    it.begun((2, 1))
    assert told(it, "kill", incarnation=[2, 0], grace=0) is AgentOrder.NOTHING
    assert told(it, "kill", incarnation=[3, 0], grace=0) is AgentOrder.KILL


def test_the_lease_runs_from_the_sending_of_the_heartbeat_that_was_answered() -> None:
    it = duty(lease=10.0)
    beat = it.seen(5.0, 5.0)["beat"]
    told(it, "alive", now=12.0, beat=beat)
    assert not it.lapsed(14.9)
    assert it.lapsed(15.0)


def test_an_answer_that_was_overtaken_does_not_shorten_the_lease() -> None:
    it = duty(lease=10.0)
    told(it, "alive", now=6.0, beat=5.0)
    told(it, "alive", now=6.1, beat=4.0)
    assert not it.lapsed(14.9)


def test_nothing_is_started_once_the_lease_is_over() -> None:
    it = duty(lease=10.0)
    assert told(it, "start", now=10.0, incarnation=[1, 0]) is AgentOrder.NOTHING


def test_without_a_lease_there_is_no_end_of_it() -> None:
    it = duty(lease=0.0)
    assert not it.lapsed(1e9)
    assert told(it, "start", now=1e9, incarnation=[1, 0]) is AgentOrder.START


def test_stacks_are_asked_of_the_running_life_alone() -> None:
    it = duty()
    assert told(it, "stacks", incarnation=[1, 0]) is AgentOrder.NOTHING
    it.begun((1, 0))
    assert told(it, "stacks", incarnation=[1, 0]) is AgentOrder.STACKS
    assert told(it, "stacks", incarnation=[0, 9]) is AgentOrder.NOTHING


def test_a_short_lease_needs_quicker_heartbeats() -> None:
    assert duty(lease=1.0).heartbeat == 0.25
    assert duty(lease=60.0).heartbeat == duty(lease=0.0).heartbeat == 1.0
