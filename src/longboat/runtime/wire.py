"""The wire protocol of driver and agents: frames, and the handshake that opens a connection.

A frame is a four-byte length and a JSON object whose `is` names the message. Both sides prove that they hold the run's
token without sending it: each signs the nonces of both, the service and the client's name. The state machines never see
bytes; the simulator uses this same encoder.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import struct
from typing import Any, Dict, List, Tuple

Message = Dict[str, Any]

LIMIT = 32 * 1024 * 1024
"""Longest frame in bytes; longer ones are refused."""
STRANGER_LIMIT = 256 * 1024
"""Longest frame before authentication. A join may report how an incarnation ended, with the last lines of its log."""

DRIVER, FILE_SERVER, MPI_WORKER = "driver", "file server", "MPI worker"
"""Services that begin with the handshake. A proof for one is worthless at another."""

_HEAD = struct.Struct(">I")


class WireError(Exception):
    """The peer does not speak this protocol, or could not authenticate."""


def encode(message: Message) -> bytes:
    body = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
    return _HEAD.pack(len(body)) + body


class Decoder:
    """Decodes received bytes into complete messages."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._buffer = bytearray()
        self.limit = limit

    def feed(self, data: bytes) -> List[Message]:
        self._buffer += data
        messages = []
        while len(self._buffer) >= _HEAD.size:
            (length,) = _HEAD.unpack_from(self._buffer)
            if length > self.limit:
                raise WireError(f"a frame of {length} bytes is longer than {self.limit}")
            end = _HEAD.size + length
            if len(self._buffer) < end:
                break
            try:
                message = json.loads(self._buffer[_HEAD.size : end].decode("utf-8"))
            except (ValueError, RecursionError):
                raise WireError("a frame is not JSON") from None
            if not isinstance(message, dict) or not isinstance(message.get("is"), str):
                raise WireError("a frame is not a message: it has no text `is`")
            del self._buffer[:end]
            messages.append(message)
        return messages


def lively(sock: socket.socket) -> socket.socket:
    """Set up a TCP connection so that a peer that disappears silently is noticed within seconds."""
    for name, value in (("TCP_NODELAY", 1), ("TCP_KEEPIDLE", 2), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 6000)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return sock


def nonce() -> str:
    return os.urandom(16).hex()


class ServerHandshake:
    """The handshake as the server sees it: send `hello`, receive a join, send `welcome`."""

    def __init__(self, token: bytes, service: str) -> None:
        self._token, self._service, self._nonce = token, service, nonce()

    def hello(self) -> Message:
        return {"is": "hello", "nonce": self._nonce}

    def welcome(self, join: Message) -> Message:
        """The answer to a client that holds the token; WireError for all others. Then `join["name"]` can be trusted."""
        proven = (self._service, self._nonce, join.get("nonce"), join.get("name"))
        _check(join, "join", self._token, "client", *proven)
        return {"is": "welcome", "proof": _proof(self._token, "server", *proven)}


class ClientHandshake:
    """The handshake as the client sees it: receive a hello, send `join`, receive a welcome and `check` it."""

    def __init__(self, token: bytes, service: str, name: str) -> None:
        self._token, self._service, self._name, self._nonce = token, service, name, nonce()
        self._proven: Tuple[Any, ...] = ()

    def join(self, hello: Message) -> Message:
        self._proven = (self._service, hello.get("nonce"), self._nonce, self._name)
        proof = _proof(self._token, "client", *self._proven)
        return {"is": "join", "name": self._name, "nonce": self._nonce, "proof": proof}

    def check(self, welcome: Message) -> None:
        """Raise WireError unless the server holds the token."""
        _check(welcome, "welcome", self._token, "server", *self._proven)


def _proof(token: bytes, *proven: Any) -> str:
    """Proof of holding the token, for this side, service, nonces and name only."""
    if not all(isinstance(part, str) for part in proven):
        raise WireError("a handshake has a name or nonce that is not text")
    return hmac.new(token, json.dumps(["longboat 2", *proven]).encode(), hashlib.sha256).hexdigest()


def _check(message: Message, kind: str, token: bytes, *proven: Any) -> None:
    # As bytes: compare_digest raises TypeError for text that is not ASCII.
    given = str(message.get("proof")).encode("utf-8", "backslashreplace")
    if message["is"] != kind or not hmac.compare_digest(given, _proof(token, *proven).encode()):
        raise WireError("the peer does not belong to this run: wrong proof")
