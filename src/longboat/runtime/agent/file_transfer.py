"""Files over a connection: what an agent and the depot beside the driver say to each other.

Frames of `wire`, and behind those that say so raw bytes. The handshake is the one of agents and
driver, under another name. Blocking, one question at a time: whoever uses it has a thread for it.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING, Any, BinaryIO, List, Tuple

from longboat.runtime import wire

if TYPE_CHECKING:
    from longboat.runtime.gang.gang_events import Incarnation

PIECE = 1 << 20
CONNECT = 2.0
"""Seconds to reach the depot; there is always another try."""
PLACES = ("logs", "checkpoints", "output", "storage", "models", "board")
"""The parts of a run directory that agents may send to and fetch from."""
_HEAD = struct.Struct(">I")

Entry = Tuple[str, int, int]
"""Path within the run, size, time of change in nanoseconds."""


class FileRefused(Exception):
    """The depot cannot take a file, however often it is sent."""


class StaleIncarnation(Exception):
    """A later life has taken the place of whoever sends this: nothing of it is taken any more."""


class FileStream:
    """Frames and bytes over a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.limit = wire.STRANGER_LIMIT
        """Of a frame: until the other side has proven itself, and then `wire.LIMIT`."""
        self._file: BinaryIO = sock.makefile("rb")

    def send(self, kind: str, **keys: Any) -> None:
        self.socket.sendall(wire.encode({"is": kind, **keys}))

    def receive(self) -> wire.Message:
        (length,) = _HEAD.unpack(self.bytes(_HEAD.size))
        if length > self.limit:
            raise wire.WireError("a frame is too long")
        found = wire.Decoder().feed(_HEAD.pack(length) + self.bytes(length))
        return found[0]

    def bytes(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) < count:
            raise wire.WireError("the other side has closed")
        return data

    def send_file(self, file: BinaryIO, count: int) -> None:
        while count:
            data = file.read(min(PIECE, count))
            if not data:
                raise wire.WireError("a file shrank while it was sent")
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
    """The client's end."""

    def __init__(self, address: str, token: bytes, name: str, timeout: float = 60.0) -> None:
        host, _, port = address.rpartition(":")
        # Short: behind the address may still be a driver that is gone, and then nobody answers at all.
        link = socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT)
        link.settimeout(timeout)
        self._stream = FileStream(wire.lively(link))
        nonces = f"{self._stream.receive()['nonce']}{(ours := wire.nonce())}"
        self._stream.send("deposit", name=name, nonce=ours, proof=wire.proof(token, "agent", nonces, name))
        if not wire.proven(self._stream.receive().get("proof"), token, "driver", nonces, name):
            raise wire.WireError("what answered is not this run's depot")
        self._stream.limit = wire.LIMIT

    def claim(self, incarnation: Incarnation) -> None:
        """For this life all that follows is said; from here on the depot takes nothing from an older one."""
        self._stream.send("claim", incarnation=incarnation)
        self._expect("ok")

    def size(self, path: str) -> int:
        self._stream.send("size", path=path)
        return int(self._stream.receive()["n"])

    def append(self, path: str, at: int, data: bytes) -> None:
        """Puts bytes where they belong; said twice, it does the same."""
        self._stream.send("put", path=path, at=at, n=len(data))
        self._stream.socket.sendall(data)
        self._expect("ok")

    def put(self, path: str, file: BinaryIO) -> int:
        """A whole file, seen by others only once it is all there; its time of change there."""
        count = os.fstat(file.fileno()).st_size
        self._stream.send("file", path=path, n=count)
        self._stream.send_file(file, count)
        return int(self._expect("ok")["at"])

    def get(self, path: str, target: str) -> bool:
        """Fetches a file; False when there is none."""
        self._stream.send("get", path=path)
        answer = self._stream.receive()
        if answer["is"] != "file":
            return False
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target + ".part", "wb") as file:
            self._stream.receive_file(file, int(answer["n"]))
        os.utime(target + ".part", ns=(int(answer["at"]), int(answer["at"])))
        os.replace(target + ".part", target)
        return True

    def list(self, path: str) -> List[Entry]:
        self._stream.send("list", path=path)
        found: List[Entry] = []
        more = True
        while more:
            page = self._stream.receive()
            found += [(str(name), int(size), int(at)) for name, size, at in page["files"]]
            more = page["more"]
        return found

    def close(self) -> None:
        self._stream.close()

    def _expect(self, kind: str) -> wire.Message:
        answer = self._stream.receive()
        if answer["is"] == "stale":
            raise StaleIncarnation(str(answer["why"]))
        if answer["is"] == "never":
            raise FileRefused(str(answer["why"]))
        if answer["is"] != kind:
            raise wire.WireError(str(answer.get("why", "the depot said no")))
        return answer
