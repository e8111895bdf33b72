"""The agent's session with its driver: reconnects, and resends what the driver may have missed.

Without a lease the agent ends with the driver. With one it keeps training, reconnects to the driver,
and then sends what it could not send meanwhile or what may have been lost.
"""

from __future__ import annotations

import time
from typing import List, Optional

from longboat.runtime import debug_log, wire
from longboat.runtime.agent.agent_config import AgentConfig
from longboat.runtime.agent.driver_link import HANDSHAKE, DriverLink
from longboat.runtime.agent.outbox import Outbox
from longboat.runtime.messages import AgentState

RETRY = 1.0
"""Seconds between two attempts to reconnect."""
LOOK = 1.0
"""Seconds for one attempt while a process runs: the agent does not watch it meanwhile."""


class DriverSession:
    """Messages to and from the driver; `select` can wait for it while it is connected."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._link: Optional[DriverLink] = None
        self._heard = time.monotonic()
        self._next_look = 0.0
        self._outbox = Outbox()

    @property
    def lost(self) -> bool:
        return self._link is None

    @property
    def owes(self) -> bool:
        """Whether the driver has not acknowledged everything that it must hear."""
        return bool(self._outbox)

    def fileno(self) -> int:
        return -1 if self._link is None else self._link.socket.fileno()

    def make(self, seen: AgentState) -> List[wire.Message]:
        """Connect for the first time; returns the driver's first messages. Fails if the driver does not respond."""
        self._link = link = DriverLink(self._config, seen)
        debug_log.info("connected to the driver at %s", self._config.driver)
        return link.waiting

    def look(self, seen: AgentState, brief: bool) -> List[wire.Message]:
        """Try to reconnect if it is time; returns the driver's first messages. brief: a process has to be watched."""
        now = time.monotonic()
        if now < self._next_look:
            return []
        self._next_look = now + RETRY
        owes = bool(self._outbox)
        try:
            link = DriverLink(self._config, {**seen, "owes": owes}, LOOK if brief else HANDSHAKE)
        except (OSError, wire.WireError) as error:
            debug_log.info("cannot reconnect to the driver at %s: %s", self._config.driver, error)
            return []
        debug_log.info("reconnected to the driver at %s", self._config.driver)
        self._link, self._heard = link, time.monotonic()
        if owes:
            for message in [*self._outbox.take(), {"is": "alive", **seen}]:
                self.send(message)
        return link.waiting

    def send(self, message: wire.Message) -> None:
        """Send now, or after reconnecting."""
        message = self._outbox.numbered(message)
        sent = self._sent(message)
        self._outbox.keep(message, sent)
        if not sent and self._link is not None:
            self._lose()

    def receive(self) -> List[wire.Message]:
        """Messages that have arrived; none if the connection is lost."""
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
            self._outbox.heard(answer)
        return messages

    def doubt(self, now: float) -> None:
        """Drop a connection that is silent for a third of the lease: it may be dead, and a new one can still be made
        in time."""
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
        debug_log.warning("lost the connection to the driver at %s", self._config.driver)
        if not self._config.lease:
            raise OSError(f"the connection to the driver at {self._config.driver} is lost")
        if self._link is not None:
            self._link.socket.close()
        self._link = None
