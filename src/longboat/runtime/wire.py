"""The wire protocol of driver and agents: frames, and the handshake that opens a connection.

A frame is a four-byte length and a JSON object whose `is` names the message. Both sides prove that they hold the run's
token without sending it: each signs the other's nonce. The state machines never see bytes; the simulator uses this same
encoder.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import struct
from typing import Any, Dict, List

Message = Dict[str, Any]

LIMIT = 32 * 1024 * 1024
"""Longest frame in bytes; longer ones are refused."""
STRANGER_LIMIT = 256 * 1024
"""Longest frame before authentication. A join may report how an incarnation ended, with the last lines of its log."""

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


def proof(token: bytes, side: str, nonces: str, subject: str = "") -> str:
    """Proof that `side` holds the token, for these nonces and this subject only."""
    text = "\0".join(("longboat 1", side, nonces, subject)).encode()
    return hmac.new(token, text, hashlib.sha256).hexdigest()


def proven(given: Any, token: bytes, side: str, nonces: str, subject: str = "") -> bool:
    return isinstance(given, str) and hmac.compare_digest(given, proof(token, side, nonces, subject))
