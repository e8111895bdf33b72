"""File transfer between agents and the driver's file server: protocol and client.

Frames of `wire`; some are followed by raw bytes. The handshake is that of agents and driver. Blocking,
one request at a time: use it from a thread of its own.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING, Any, BinaryIO, List, Tuple

from longboat.runtime import atomic_file, wire

if TYPE_CHECKING:
    from longboat.runtime.gang.gang_events import Incarnation

PIECE = 1 << 20
CONNECT = 2.0
"""Seconds to connect to the file server; callers retry."""
PLACES = ("logs", "checkpoints", "output", "storage", "models", "board")
"""Directories of a run that agents may read and write."""
_HEAD = struct.Struct(">I")

Entry = Tuple[str, int, int]
"""Path in the run, size, modification time in nanoseconds."""


class FileRefused(Exception):
    """The file server cannot store a file; a retry would not help."""


class StaleIncarnation(Exception):
    """A later incarnation has replaced the sender: the file server accepts nothing more from it."""


class FileStream:
    """Frames and bytes over a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.limit = wire.STRANGER_LIMIT
        """Largest frame; `wire.LIMIT` once the peer is authenticated."""
        self._file: BinaryIO = sock.makefile("rb")

    def join(self, token: bytes, service: str, name: str) -> None:
        """Authenticate this side as a client, and the peer as the service; WireError if the peer is another."""
        handshake = wire.ClientHandshake(token, service, name)
        self.socket.sendall(wire.encode(handshake.join(self.receive())))
        handshake.check(self.receive())
        self.limit = wire.LIMIT

    def welcome(self, token: bytes, service: str) -> str:
        """Authenticate the peer as a client; returns its name. WireError if it does not hold the token."""
        handshake = wire.ServerHandshake(token, service)
        self.socket.sendall(wire.encode(handshake.hello()))
        join = self.receive()
        self.socket.sendall(wire.encode(handshake.welcome(join)))
        self.limit = wire.LIMIT
        return str(join["name"])

    def send(self, kind: str, **keys: Any) -> None:
        self.socket.sendall(wire.encode({"is": kind, **keys}))

    def receive(self) -> wire.Message:
        (length,) = _HEAD.unpack(self.bytes(_HEAD.size))
        if length > self.limit:
            raise wire.WireError(f"a frame of {length} bytes is too long (limit {self.limit})")
        messages = wire.Decoder().feed(_HEAD.pack(length) + self.bytes(length))
        return messages[0]

    def bytes(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) < count:
            raise wire.WireError("the peer closed the connection")
        return data

    def send_file(self, file: BinaryIO, count: int) -> None:
        while count:
            data = file.read(min(PIECE, count))
            if not data:
                raise wire.WireError("the file shrank while it was being sent")
            self.socket.sendall(data)
            count -= len(data)

    def receive_file(self, file: BinaryIO, count: int) -> None:
        while count:
            data = self.bytes(min(PIECE, count))
            file.write(data)
            count -= len(data)

    def close(self) -> None:
        self._file.close()
        self.socket.close()


class FileClient:
    """Client of the driver's file server."""

    def __init__(self, address: str, token: bytes, name: str, timeout: float = 60.0) -> None:
        host, _, port = address.rpartition(":")
        # Short: the address may still lead to a driver that is gone, and then nothing responds.
        link = socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT)
        link.settimeout(timeout)
        self._stream = FileStream(wire.lively(link))
        self._stream.join(token, wire.FILE_SERVER, name)

    def claim(self, incarnation: Incarnation) -> None:
        """Claim this rank's paths for an incarnation; from now on the file server rejects older ones."""
        self._stream.send("claim", incarnation=incarnation)
        self._expect("ok")

    def end(self, path: str) -> Tuple[int, bytes]:
        """A file's size and its last byte."""
        self._stream.send("end", path=path)
        count = int(self._stream.receive()["n"])
        return count, self._stream.bytes(min(count, 1))

    def append(self, path: str, at: int, data: bytes) -> None:
        """Write bytes at an offset; repeating it is harmless."""
        self._stream.send("put", path=path, at=at, n=len(data))
        self._stream.socket.sendall(data)
        self._expect("ok")

    def put(self, path: str, file: BinaryIO) -> int:
        """Store a file, visible to others only when complete; returns its modification time on the server."""
        count = os.fstat(file.fileno()).st_size
        self._stream.send("file", path=path, n=count)
        self._stream.send_file(file, count)
        return int(self._expect("ok")["at"])

    def get(self, path: str, target: str) -> bool:
        """Fetch a file; False if it does not exist."""
        self._stream.send("get", path=path)
        answer = self._stream.receive()
        if answer["is"] != "file":
            return False
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with atomic_file.replacing(target) as part:
            with open(part, "wb") as file:
                self._stream.receive_file(file, int(answer["n"]))
            os.utime(part, ns=(int(answer["at"]), int(answer["at"])))
        return True

    def list(self, path: str) -> List[Entry]:
        self._stream.send("list", path=path)
        entries: List[Entry] = []
        more = True
        while more:
            page = self._stream.receive()
            entries += [(str(name), int(size), int(at)) for name, size, at in page["files"]]
            more = page["more"]
        return entries

    def close(self) -> None:
        self._stream.close()

    def _expect(self, kind: str) -> wire.Message:
        answer = self._stream.receive()
        if answer["is"] == "stale":
            raise StaleIncarnation(str(answer["why"]))
        if answer["is"] == "never":
            raise FileRefused(str(answer["why"]))
        if answer["is"] != kind:
            raise wire.WireError(str(answer.get("why", "the file server refused the request")))
        return answer
