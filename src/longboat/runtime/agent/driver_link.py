"""The agent's connection to the driver: connect, authenticate, send and receive."""

from __future__ import annotations

import socket
from typing import List, Optional

from longboat.runtime import wire
from longboat.runtime.agent.agent_config import AgentConfig
from longboat.runtime.messages import AgentState

HANDSHAKE = 30.0
"""Seconds for the driver to complete the handshake."""


class DriverLink:
    """The authenticated connection to the driver."""

    def __init__(self, config: AgentConfig, seen: AgentState, patience: float = HANDSHAKE) -> None:
        self._decoder = wire.Decoder()
        self.waiting: List[wire.Message] = []
        """Messages that arrived with the last one of the handshake."""
        self.socket = connect(config.driver, patience)
        handshake = wire.ClientHandshake(config.token, wire.DRIVER, config.seat.name)
        self.send({**seen, **handshake.join(self._next())})
        handshake.check(self._next())
        self.socket.settimeout(None)

    def send(self, message: wire.Message) -> None:
        self.socket.sendall(wire.encode(message))

    def receive(self) -> Optional[List[wire.Message]]:
        """Messages that have arrived; None if the driver closed the connection."""
        data = self.socket.recv(1 << 16)
        return self._decoder.feed(data) if data else None

    def _next(self) -> wire.Message:
        while not self.waiting:
            messages = self.receive()
            if messages is None:
                raise wire.WireError("the driver closed the connection")
            self.waiting = messages
        return self.waiting.pop(0)


def connect(address: str, patience: float) -> socket.socket:
    """Connect to the path of a socket, or to HOST:PORT."""
    if address.startswith("/"):
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.connect(address)  # blocks while the driver's backlog is full
        link.settimeout(patience)
        return link
    host, _, port = address.rpartition(":")
    return wire.lively(socket.create_connection((host.strip("[]"), int(port)), timeout=patience))
