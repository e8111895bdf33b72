"""What driver and agents say to each other: frames, and the handshake that opens a connection.

A frame is a four-byte length and a JSON object whose `is` names the message. Both sides
prove that they hold the run's token without sending it: each signs the other's nonce. The
machines above never see bytes; the simulator uses this very encoder.
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
"""A longer frame is refused: it is no message of ours."""
STRANGER_LIMIT = 256 * 1024
"""The same, of who has proven nothing yet. A join may tell how a life ended, with the last lines of its log."""

_HEAD = struct.Struct(">I")


class WireError(Exception):
    """The other side does not speak this protocol, or could not prove itself."""


def encode(message: Message) -> bytes:
    body = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")
    return _HEAD.pack(len(body)) + body


class Decoder:
    """Bytes in, as they come; whole messages out."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._buffer = bytearray()
        self.limit = limit

    def feed(self, data: bytes) -> List[Message]:
        self._buffer += data
        found = []
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
                raise WireError("a frame does not hold JSON") from None
            if not isinstance(message, dict) or not isinstance(message.get("is"), str):
                raise WireError("a frame does not hold a message")
            del self._buffer[:end]
            found.append(message)
        return found


def lively(sock: socket.socket) -> socket.socket:
    """A TCP connection whose other end may vanish without a word: that is noticed within seconds."""
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
    """Shows that `side` holds the token, for these nonces and this subject alone."""
    text = "\0".join(("longboat 1", side, nonces, subject)).encode()
    return hmac.new(token, text, hashlib.sha256).hexdigest()


def proven(given: Any, token: bytes, side: str, nonces: str, subject: str = "") -> bool:
    return isinstance(given, str) and hmac.compare_digest(given, proof(token, side, nonces, subject))
