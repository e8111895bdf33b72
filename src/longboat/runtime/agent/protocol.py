"""What an agent owes its driver: the protocol's agent side, without clock, socket or process.

The agent asks here which messages to obey, what to say about itself, and whether its lease has
run out; it keeps the sockets and processes. The simulator puts this very class under a bad
network, so no rule of the protocol may live outside it.

Two promises make a restart safe. A life that was ended before it began never begins: a late start
finds the seat already past it. And the lease runs from the sending of the last heartbeat that the
driver has answered, so that a slow answer does not lengthen it: when the driver has heard nothing
for as long as the lease, the agent has ended its process or is about to, and starts no other.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Any, Dict, Mapping, Optional, Sequence

from longboat.runtime.gang.gang_events import NO_INCARNATION, Incarnation

HEARTBEAT = 1.0
"""Seconds between two words to the driver at most; a short lease needs them more often."""


class AgentOrder(Enum):
    """What a message asks of the agent, once it is known that it must be obeyed."""

    NOTHING = "nothing"
    START = "start"
    KILL = "kill"
    SAY_ENDED = "say ended"
    """The process was to be ended before it began: it never will."""
    STACKS = "stacks"
    BYE = "bye"


class AgentProtocol:
    """Lives, and the lease under which they are lived."""

    def __init__(self, name: str, address: Sequence[Any], lease: float, now: float) -> None:
        self.name = name
        """Tells the driver this agent from another one at the same seat."""
        self.incarnation: Incarnation = NO_INCARNATION
        self.running = False
        self.exit: Optional[Dict[str, Any]] = None
        """How the current life ended, when it did."""
        self.heartbeat = min(HEARTBEAT, lease / 4) if lease else HEARTBEAT
        self._address = address
        self._lease = lease
        self._renewed = now
        self._grace = math.inf
        """The shortest grace that the running process was given so far."""

    def seen(self, now: float, wall: float) -> Dict[str, Any]:
        """What this agent is doing; the driver compares it with what it wants."""
        return {
            "agent": self.name,
            "address": self._address,
            "incarnation": list(self.incarnation),
            "running": self.running,
            "exit": self.exit,
            "at": wall,
            "beat": now,
        }

    def order(self, message: Mapping[str, Any], now: float, wall: float) -> AgentOrder:
        """What to do about a message; stale and repeated ones ask for nothing."""
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
                if incarnation > self.incarnation and not self.running and not self.lapsed(now)
                else AgentOrder.NOTHING
            )
        if kind == "kill":
            return self._told_to_kill(incarnation, float(message["grace"]), wall)
        return (
            AgentOrder.STACKS
            if kind == "stacks" and self.running and incarnation == self.incarnation
            else AgentOrder.NOTHING
        )

    def _told_to_kill(self, incarnation: Incarnation, grace: float, wall: float) -> AgentOrder:
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

    def ended(self, ending: Dict[str, Any]) -> None:
        self.running, self.exit = False, ending

    def lapsed(self, now: float) -> bool:
        """The driver may have given this seat away by now: nothing may run here."""
        return bool(self._lease) and now >= self._renewed + self._lease
