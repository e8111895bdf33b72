"""The agent's side of the protocol: which orders to obey, what to report, and the lease. No clock, socket or process.

`Agent` keeps the sockets and processes. The simulator runs this class over a bad network, so all rules of
the protocol are here.

Two rules make a restart safe. An incarnation that was stopped before it started never starts: a late start
order finds the seat past it. And the lease runs from the sending of the last heartbeat that the driver has
answered, so a slow answer does not extend it: once the driver has heard nothing for the length of the lease,
the agent has stopped its process or is about to, and starts no other.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Any, Mapping, Optional, Sequence

from longboat.runtime.gang.gang_events import NO_INCARNATION, Incarnation
from longboat.runtime.messages import AgentState, RankExit

HEARTBEAT = 1.0
"""Most seconds between two heartbeats; a short lease needs more."""


class AgentOrder(Enum):
    """What the agent has to do about a message."""

    NOTHING = "nothing"
    START = "start"
    KILL = "kill"
    SAY_ENDED = "say ended"
    """Report an incarnation as ended: it was stopped before it started, and never will."""
    STACKS = "stacks"
    BYE = "bye"


class AgentProtocol:
    """Incarnations of one seat, and the agent's lease."""

    def __init__(self, name: str, address: Sequence[Any], lease: float, now: float) -> None:
        self.name = name
        """Distinguishes this agent from others at the same seat."""
        self.incarnation: Incarnation = NO_INCARNATION
        self.running = False
        self.exit: Optional[RankExit] = None
        """How the current incarnation ended; None while it runs."""
        self.failing: Optional[RankExit] = None
        """How the current incarnation is about to end: its program raised an exception that nothing caught."""
        self.heartbeat = min(HEARTBEAT, lease / 4) if lease else HEARTBEAT
        self._address = address
        self._lease = lease
        self._renewed = now
        self._grace = math.inf
        """The shortest grace period ordered for the running process so far."""
        self._warned: Optional[Incarnation] = None
        """The incarnation that ran when the machine said that it is going away."""
        self._left: Optional[float] = None
        """Since when this agent only waits for the driver to hear that it leaves."""

    def seen(self, now: float, wall: float) -> AgentState:
        """This agent's state; the driver compares it with what it wants. What happens only once is in every state, too:
        the driver that heard it first may be gone."""
        state: AgentState = {
            "agent": self.name,
            "address": self._address,
            "incarnation": list(self.incarnation),
            "running": self.running,
            "exit": self.exit,
            "failing": self.failing,
            "at": wall,
            "beat": now,
        }
        if self.running and self._warned == self.incarnation:
            state["notice"] = True
        if self._left is not None:
            state["left"] = True
        return state

    def order(self, message: Mapping[str, Any], now: float, wall: float) -> AgentOrder:
        """What to do about a message; stale and repeated ones need nothing."""
        kind = message["is"]
        if kind == "bye":
            return AgentOrder.BYE
        if kind == "alive":
            self._renewed = max(self._renewed, min(float(message["beat"]), now))
            return AgentOrder.NOTHING
        generation, restart = message.get("incarnation", NO_INCARNATION)
        incarnation = (int(generation), int(restart))
        if kind == "start":
            return (
                AgentOrder.START
                if incarnation > self.incarnation and not (self.running or self._left or self.lapsed(now))
                else AgentOrder.NOTHING
            )
        if kind == "kill":
            return self._kill_order(incarnation, float(message["grace"]), wall)
        return (
            AgentOrder.STACKS
            if kind == "stacks" and self.running and incarnation == self.incarnation
            else AgentOrder.NOTHING
        )

    def _kill_order(self, incarnation: Incarnation, grace: float, wall: float) -> AgentOrder:
        if self.running and incarnation >= self.incarnation and grace < self._grace:
            self._grace = grace
            return AgentOrder.KILL
        if not self.running and incarnation > self.incarnation:
            self.incarnation = incarnation
            self.exit = {"code": -1, "signal": 0, "at": wall, "asked": True, "cause": None}
            return AgentOrder.SAY_ENDED
        return AgentOrder.NOTHING

    def begun(self, incarnation: Incarnation) -> None:
        self.incarnation, self.running, self.exit, self._grace = incarnation, True, None, math.inf
        self.failing = None

    def ended(self, ending: RankExit) -> RankExit:
        """Record how the incarnation ended; returns what counts: an exception comes before its exit."""
        self.running, self.exit = False, self.failing or ending
        return self.exit

    def warned(self) -> None:
        """The machine is going away."""
        self._warned = self.incarnation

    def leave(self, now: float) -> None:
        """Nothing runs here any more, and nothing will."""
        self._left = now if self._left is None else self._left

    @property
    def left(self) -> bool:
        """Whether a driver knows that this agent leaves, and so all that it said before."""
        return self._left is not None and self._renewed >= self._left

    def lapsed(self, now: float) -> bool:
        """Whether the lease has run out: the driver may have given the seat away, so nothing may run here."""

        return bool(self._lease) and now >= self._renewed + self._lease
