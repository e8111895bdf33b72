"""The agent's contact with its driver, over as many links as it takes.

Without a lease the driver's end is the agent's. With one the agent trains on and looks for the
driver, and once it is found says what could not be said meanwhile, or may not have been heard.
"""

from __future__ import annotations

import time
from typing import List, Optional

from longboat.runtime import wire
from longboat.runtime.agent.agent_config import AgentConfig
from longboat.runtime.agent.driver_link import HANDSHAKE, DriverLink
from longboat.runtime.agent.outbox import Outbox

RETRY = 1.0
"""Seconds between two looks for a driver that is away."""
LOOK = 1.0
"""Seconds for such a look while a process runs under a lease: meanwhile nobody watches it."""


class DriverSession:
    """What is said and heard; `select` may wait for it while it is not lost."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._link: Optional[DriverLink] = None
        self._heard = time.monotonic()
        self._next_look = 0.0
        self._unheard = Outbox()

    @property
    def lost(self) -> bool:
        return self._link is None

    def fileno(self) -> int:
        return -1 if self._link is None else self._link.socket.fileno()

    def make(self, seen: wire.Message) -> List[wire.Message]:
        """The first link, without which there is nothing to do here; gives what the driver says at once."""
        self._link = link = DriverLink(self._config, seen)
        return link.waiting

    def look(self, seen: wire.Message, brief: bool) -> List[wire.Message]:
        """Looks for the driver if it is time; gives what it says when it is found. brief: something else waits."""
        now = time.monotonic()
        if now < self._next_look:
            return []
        self._next_look = now + RETRY
        owes = bool(self._unheard)
        try:
            link = DriverLink(self._config, {**seen, "owes": owes}, LOOK if brief else HANDSHAKE)
        except (OSError, wire.WireError):
            return []
        self._link, self._heard = link, time.monotonic()
        if owes:
            for message in [*self._unheard.take(), {"is": "alive", **seen}]:
                self.send(message)
        return link.waiting

    def send(self, message: wire.Message) -> None:
        """Now, or when the driver is found again."""
        message = self._unheard.numbered(message)
        sent = self._sent(message)
        self._unheard.keep(message, sent)
        if not sent and self._link is not None:
            self._lose()

    def receive(self) -> List[wire.Message]:
        """What has arrived; nothing when the driver turns out to be gone."""
        if self._link is None:
            return []
        try:
            messages = self._link.receive()
        except (OSError, wire.WireError):
            messages = None
        if messages is None:
            self._lose()
            return []
        self._heard = time.monotonic()
        for answer in (message for message in messages if message["is"] == "alive"):
            self._unheard.heard(answer)
        return messages

    def doubt(self, now: float) -> None:
        """A link may have died unnoticed: after a third of the lease in silence, another one can still come in time."""
        if self._config.lease and now >= self._heard + self._config.lease / 3 and self._link is not None:
            self._lose()

    def _sent(self, message: wire.Message) -> bool:
        try:
            if self._link is not None:
                self._link.send(message)
            return self._link is not None
        except OSError:
            return False

    def _lose(self) -> None:
        if not self._config.lease:
            raise OSError("the driver is gone")
        if self._link is not None:
            self._link.socket.close()
        self._link = None
