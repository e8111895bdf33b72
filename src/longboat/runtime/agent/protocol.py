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

from longboat.runtime.gang.gang_events import NO_LIFE, Life

HEARTBEAT = 1.0
"""Seconds between two words to the driver at most; a short lease needs them more often."""


class Order(Enum):
    """What a message asks of the agent, once it is known that it must be obeyed."""

    NOTHING = "nothing"
    START = "start"
    KILL = "kill"
    SAY_ENDED = "say ended"
    """The process was to be ended before it began: it never will."""
    STACKS = "stacks"
    BYE = "bye"


class Duty:
    """Lives, and the lease under which they are lived."""

    def __init__(self, name: str, address: Sequence[Any], lease: float, now: float) -> None:
        self.name = name
        """Tells the driver this agent from another one at the same seat."""
        self.life: Life = NO_LIFE
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
            "life": list(self.life),
            "running": self.running,
            "exit": self.exit,
            "at": wall,
            "beat": now,
        }

    def order(self, message: Mapping[str, Any], now: float, wall: float) -> Order:
        """What to do about a message; stale and repeated ones ask for nothing."""
        kind = message["is"]
        if kind == "bye":
            return Order.BYE
        if kind == "alive":
            self._renewed = max(self._renewed, min(float(message["beat"]), now))
            return Order.NOTHING
        generation, restart = message.get("life", NO_LIFE)
        life = (int(generation), int(restart))
        if kind == "start":
            return Order.START if life > self.life and not self.running and not self.lapsed(now) else Order.NOTHING
        if kind == "kill":
            return self._told_to_kill(life, float(message["grace"]), wall)
        return Order.STACKS if kind == "stacks" and self.running and life == self.life else Order.NOTHING

    def _told_to_kill(self, life: Life, grace: float, wall: float) -> Order:
        if self.running and life >= self.life and grace < self._grace:
            self._grace = grace
            return Order.KILL
        if not self.running and life > self.life:
            self.life = life
            self.exit = {"code": -1, "signal": 0, "at": wall, "asked": True, "cause": None}
            return Order.SAY_ENDED
        return Order.NOTHING

    def begun(self, life: Life) -> None:
        self.life, self.running, self.exit, self._grace = life, True, None, math.inf

    def ended(self, ending: Dict[str, Any]) -> None:
        self.running, self.exit = False, ending

    def lapsed(self, now: float) -> bool:
        """The driver may have given this seat away by now: nothing may run here."""
        return bool(self._lease) and now >= self._renewed + self._lease
