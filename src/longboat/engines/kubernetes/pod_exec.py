"""A program in a pod, with its streams: the cluster's exec, over a WebSocket.

The few rules of the protocol that are needed (RFC 6455; channels of v5.channel.k8s.io: the first
byte of a message is 0 stdin, 1 stdout, 2 stderr, 3 how it ended, 4 the terminal's size). The
cluster has authenticated the caller, so nothing else has to.
"""

from __future__ import annotations

import base64
import json
import os
import select
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self
from urllib.parse import urlencode

from longboat.runtime.kube_client.api import Api, ApiError, dial

FRAME = 1 << 18
"""Bytes that are sent as one message."""
STDIN, STDOUT, STDERR, ENDED, RESIZE = range(5)
_TEXT, _BINARY, _CLOSE, _PING, _PONG = 1, 2, 8, 9, 10


class ExecLost(ConnectionError):
    """The connection to the cluster did not come about, or broke."""


@contextmanager
def _connected() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ExecLost(f"the connection to the cluster was lost: {error}") from None


class ExecChannel:
    """A WebSocket to the cluster, whose messages begin with the number of a channel."""

    def __init__(self, api: Api, path: str, timeout: float = 15.0) -> None:
        self.code: int | None = None
        self._rest = b""
        with _connected():
            self._socket = dial(api.server, timeout)
        key = base64.b64encode(os.urandom(16)).decode()
        headers = {
            "Host": api.server.authority,
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": key,
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Protocol": "v5.channel.k8s.io, v4.channel.k8s.io",
            **api.server.headers(False),
        }
        lines = [
            f"GET {api.server.prefix}{path} HTTP/1.1",
            *(f"{name}: {value}" for name, value in headers.items()),
            "",
            "",
        ]
        with _connected():
            self._socket.sendall("\r\n".join(lines).encode())
        self._open()
        self._socket.settimeout(None)

    def fileno(self) -> int:
        return self._socket.fileno()

    def message(self) -> tuple[int, bytes]:
        """(channel, bytes) of the next message; raises ExecLost when the connection is closed."""
        while True:
            kind, data = self._frame()
            if kind == _PING:
                self._send(_PONG, data)
            elif kind == _CLOSE:
                raise ExecLost("the cluster closed the connection")
            elif kind in (_TEXT, _BINARY) and data:
                return data[0], data[1:]

    def receive(self, timeout: float | None = None) -> tuple[int, bytes] | None:
        """(channel, bytes); None when the program has ended. Raises TimeoutError after `timeout` seconds without data,
        and ExecLost if the connection was lost."""
        while self.code is None:
            if timeout is not None and not self.pending and not select.select([self._socket], [], [], timeout)[0]:
                raise TimeoutError
            channel, data = self.message()
            if channel == ENDED:
                self.code = _code(data)
            elif data:
                return channel, data
        return None

    def send(self, data: bytes, channel: int = STDIN) -> None:
        self._send(_BINARY, bytes([channel]) + data)

    def close_input(self) -> None:
        """The program reads the end of its input."""
        self._send(_BINARY, bytes([255, STDIN]))

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        while b"\r\n\r\n" not in self._rest:
            self._rest += self._read()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        status = int(head.split(None, 2)[1])
        if status == 101:
            return
        size = next(
            (int(line.split(b":")[1]) for line in head.splitlines() if line.lower().startswith(b"content-length:")), 0
        )
        while len(self._rest) < size:
            self._rest += self._read()
        try:
            status_object = json.loads(self._rest)
            message, reason = str(status_object.get("message")), str(status_object.get("reason"))
        except (ValueError, AttributeError):
            message, reason = self._rest.decode("utf-8", "replace") or f"HTTP status {status}", ""
        self.close()
        raise ApiError(status, reason, message)

    @property
    def pending(self) -> bool:
        """Data was read already and not yet received."""
        import ssl

        return bool(self._rest) or isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def _read(self) -> bytes:
        with _connected():
            data = self._socket.recv(1 << 16)
        if not data:
            raise ExecLost("the connection to the cluster was lost")
        return data

    def _take(self, count: int) -> bytes:
        if len(self._rest) < count:
            parts, have = [self._rest], len(self._rest)
            while have < count:
                data = self._read()
                parts.append(data)
                have += len(data)
            self._rest = b"".join(parts)
        data, self._rest = self._rest[:count], self._rest[count:]
        return data

    def _frame(self) -> tuple[int, bytes]:
        payload, kind = b"", 0
        while True:
            first, second = self._take(2)
            length = second & 127
            if length >= 126:
                length = struct.unpack(">H" if length == 126 else ">Q", self._take(2 if length == 126 else 8))[0]
            data = self._take(length)
            kind = first & 15 or kind
            if first & 15 >= 8:
                return first & 15, data
            payload += data
            if first & 128:
                return kind, payload

    def _send(self, kind: int, data: bytes) -> None:
        mask = os.urandom(4)
        length = len(data)
        head = bytes([128 | kind])
        if length < 126:
            head += bytes([128 | length])
        elif length < 1 << 16:
            head += bytes([128 | 126]) + struct.pack(">H", length)
        else:
            head += bytes([128 | 127]) + struct.pack(">Q", length)
        repeated = (mask * (length // 4 + 1))[:length]
        masked = (int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")).to_bytes(length, "big")
        with _connected():
            self._socket.sendall(head + mask + masked)


class PodExec(ExecChannel):
    """One program. Read `receive` until it has ended; `code` is its exit code then."""

    def __init__(
        self,
        api: Api,
        pod: str,
        command: Sequence[str],
        container: str = "",
        stdin: bool = False,
        tty: bool = False,
        timeout: float = 15.0,
    ) -> None:
        query: list[tuple[str, str]] = [("command", word) for word in command]
        query += [("stdout", "1"), *([("container", container)] if container else [])]
        query += [("stdin", "1")] if stdin else []
        query += [("tty", "1")] if tty else [("stderr", "1")]
        super().__init__(api, f"{api.path('Pod', pod)}/exec?{urlencode(query)}", timeout)


def _code(data: bytes) -> int:
    """The exit code from the last message, a Status object."""
    status = json.loads(data)
    if status.get("status") == "Success":
        return 0
    for cause in (status.get("details") or {}).get("causes") or ():
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    raise ApiError(500, str(status.get("reason")), str(status.get("message")))


def output(api: Api, pod: str, command: Sequence[str], container: str = "") -> tuple[int, bytes, bytes]:
    """Exit code, stdout and stderr of a program that takes no input."""
    streams = {STDOUT: b"", STDERR: b""}
    with PodExec(api, pod, command, container) as program:
        while (piece := program.receive()) is not None:
            streams[piece[0]] = streams.get(piece[0], b"") + piece[1]
        return program.code or 0, streams[STDOUT], streams[STDERR]
