"""Converts between wire messages and the gang's events and actions.

Pure, and the only place that does it: the driver uses it over sockets, the simulator over a simulated network.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Union

from longboat.runtime import messages as m
from longboat.runtime import wire
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.gang import gang_events as g
from longboat.runtime.journal import cause_of
from longboat.runtime.rank_env import Address, Peers
from longboat.runtime.seat import Seat

BYE = wire.encode({"is": "bye"})


def heartbeat(seat: Seat, message: m.AgentState) -> g.Heartbeat:
    host, ports = message["address"]
    incarnation = incarnation_of(message["incarnation"])
    ended, failing = message["exit"], message["failing"]
    return g.Heartbeat(
        seat,
        message["agent"],
        Address(str(host), tuple(ports)),
        incarnation,
        bool(message["running"]),
        exited(seat, incarnation, ended) if ended is not None else None,
        message["at"],
        exited(seat, incarnation, failing) if failing is not None else None,
    )


def exited(seat: Seat, incarnation: g.Incarnation, message: m.RankExit) -> g.Exited:
    return g.Exited(
        seat,
        incarnation,
        message["code"],
        message["signal"],
        message["at"],
        message["asked"],
        cause_of(message),
    )


def incarnation_of(numbers: Sequence[int]) -> g.Incarnation:
    generation, restart = numbers
    return (generation, restart)


def start(
    action: g.Start, attempt: int, round_: int, resume_from: str, merge_role: str, launcher: bool, spread: bool = False
) -> bytes:
    order = m.StartOrder(
        incarnation=action.incarnation,
        attempt=attempt,
        round=round_,
        peers=_encoded(action.peers),
        resume_from=resume_from,
        merge_role=merge_role,
        launcher=launcher,
        spread=spread,
    )
    return wire.encode({"is": "start", **order})


def order(action: Union[g.Kill, g.DumpStacks]) -> bytes:
    if isinstance(action, g.Kill):
        return wire.encode({"is": "kill", **m.KillOrder(incarnation=action.incarnation, grace=action.grace)})
    return wire.encode({"is": "stacks", **m.StacksOrder(incarnation=action.incarnation)})


def answer(message: m.AgentState) -> bytes:
    return wire.encode({"is": "alive", **m.HeartbeatAnswer(beat=message["beat"], said=message.get("said", 0))})


def _encoded(peers: Peers) -> Dict[str, List[Any]]:
    return {role: [[a.host, list(a.ports)] for a in addresses] for role, addresses in peers.items()}


def left(seat: Seat, wall: float) -> g.AgentLost:
    """The agent says itself that nothing runs any more, because its machine is going away."""
    return g.AgentLost(seat, Cause(CauseKind.PREEMPTED, "its machine was preempted").at(seat), wall)
