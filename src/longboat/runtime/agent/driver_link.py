"""The agent's connection to the driver: connect, authenticate, send and receive."""

from __future__ import annotations

import socket
from typing import List, Optional

from longboat.runtime import wire
from longboat.runtime.agent.agent_config import AgentConfig

HANDSHAKE = 30.0
"""Seconds for the driver to complete the handshake."""


class DriverLink:
    """The authenticated connection to the driver."""

    def __init__(self, config: AgentConfig, seen: wire.Message, patience: float = HANDSHAKE) -> None:
        self._decoder = wire.Decoder()
        self.waiting: List[wire.Message] = []
        """Messages that arrived with the last one of the handshake."""
        self.socket = connect(config.driver, patience)
        hello = self._expect("hello")
        ours = wire.nonce()
        nonces = f"{hello['nonce']}{ours}"
        self.send(
            {
                "is": "join",
                "seat": [config.seat.stage, config.seat.role, config.seat.rank],
                "nonce": ours,
                "proof": wire.proof(config.token, "agent", nonces, config.seat.name),
                **seen,
            }
        )
        welcome = self._expect("welcome")
        if not wire.proven(welcome.get("proof"), config.token, "driver", nonces, config.seat.name):
            raise wire.WireError(f"the process at {config.driver} is not this run's driver: wrong proof")
        self.socket.settimeout(None)

    def send(self, message: wire.Message) -> None:
        self.socket.sendall(wire.encode(message))

    def receive(self) -> Optional[List[wire.Message]]:
        """Messages that have arrived; None if the driver closed the connection."""
        data = self.socket.recv(1 << 16)
        return self._decoder.feed(data) if data else None

    def _expect(self, kind: str) -> wire.Message:
        messages: Optional[List[wire.Message]] = []
        while messages is not None and not messages:
            messages = self.receive()
        if not messages or messages[0]["is"] != kind:
            raise wire.WireError(f"the driver sent no {kind!r} message")
        self.waiting = messages[1:]
        return messages[0]


def connect(address: str, patience: float) -> socket.socket:
    """Connect to the path of a socket, or to HOST:PORT."""
    if address.startswith("/"):
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.connect(address)  # blocks while the driver's backlog is full
        link.settimeout(patience)
        return link
    host, _, port = address.rpartition(":")
    return wire.lively(socket.create_connection((host.strip("[]"), int(port)), timeout=patience))
