"""A minimal HTTP/1.1 client for API servers: one connection, responses complete or line by line.

Not http.client: that imports the mail parser and a dozen other modules, which costs an image without compiled
bytecode a tenth of a second of CPU time at each start of a driver.
"""

from __future__ import annotations

import socket
from typing import Callable, Dict, Iterator, Mapping, Optional

PIECE = 1 << 16
HEAD_MOST = 1 << 20
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~")


class ConnectionClosed(ConnectionError):
    """The server closed the connection before it responded; it may have been idle for too long."""


class BadResponse(Exception):
    """The response is not HTTP, or is incomplete."""


def quoted(text: str, safe: str = "") -> str:
    """Percent-encode text for a path or a query."""
    plain = _PLAIN | set(safe.encode())
    return "".join(chr(byte) if byte in plain else f"%{byte:02X}" for byte in text.encode())


class HttpConnection:
    """A connection that is opened at the first request."""

    def __init__(self, dial: Callable[[], socket.socket], host: str) -> None:
        self._dial, self._host = dial, host
        self._socket: Optional[socket.socket] = None
        self._rest = b""

    def request(self, method: str, path: str, body: Optional[bytes], headers: Mapping[str, str]) -> HttpResponse:
        if self._socket is None:
            self._socket, self._rest = self._dial(), b""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}", *(f"{k}: {v}" for k, v in headers.items())]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))
        return self._answer()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _answer(self) -> HttpResponse:
        while True:
            head = self._until(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            fields = first.split(None, 2)
            if len(fields) < 2 or not fields[0].startswith("HTTP/1.") or not fields[1].isdigit():
                raise BadResponse(f"not an HTTP response: {first[:80]!r}")
            pairs = (line.partition(":") for line in lines)
            answer = HttpResponse(
                self, int(fields[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}
            )
            if answer.status >= 200:  # else another response follows
                return answer

    def wait_for_ever(self) -> None:
        """Remove the timeout for the next bytes."""
        if self._socket is not None:
            self._socket.settimeout(None)

    # For HttpResponse.

    def more(self) -> bool:
        assert self._socket is not None
        data = self._socket.recv(PIECE)
        self._rest += data
        return bool(data)

    def take(self, count: int) -> bytes:
        parts, have = [self._rest], len(self._rest)
        while have < count:
            self._rest = b""
            if not self.more():
                raise BadResponse("the response is incomplete: the server closed the connection")
            parts.append(self._rest)
            have += len(self._rest)
        data = b"".join(parts)
        self._rest = data[count:]
        return data[:count]

    def rest(self) -> bytes:
        """Bytes that were received and not taken."""
        data, self._rest = self._rest, b""
        return data

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._rest:
            if len(self._rest) > HEAD_MOST:
                raise BadResponse(f"the head of the response is longer than {HEAD_MOST} bytes")
            if not self.more():
                if self._rest:
                    raise BadResponse("the response is incomplete: the server closed the connection within its head")
                raise ConnectionClosed("the server closed the connection")
        data, _, self._rest = self._rest.partition(mark)
        return data

    def line(self) -> bytes:
        return self._until(b"\r\n")


class HttpResponse:
    """A response; read it to its end before the next request on its connection."""

    def __init__(self, connection: HttpConnection, status: int, headers: Dict[str, str]) -> None:
        self.status = status
        self._connection, self._headers = connection, headers

    def header(self, name: str) -> str:
        return self._headers.get(name.lower(), "")

    def read(self) -> bytes:
        data = b"".join(self._pieces())
        if self.header("connection").lower() == "close":
            self._connection.close()
        return data

    def lines(self, keep: bool = False) -> Iterator[bytes]:
        """Lines as they arrive. keep: with their newline, so that an incomplete last line can be recognised."""
        rest, end = b"", b"\n" if keep else b""
        for piece in self._pieces():
            *complete, rest = (rest + piece).split(b"\n")
            yield from (line + end for line in complete)
        if rest:
            yield rest

    def _pieces(self) -> Iterator[bytes]:
        if self.status in (204, 304):
            return
        if "chunked" in self.header("transfer-encoding").lower():
            while True:
                size = int(self._connection.line().partition(b";")[0], 16)
                if not size:
                    while self._connection.line():  # trailers
                        pass
                    return
                yield self._connection.take(size)
                self._connection.line()
        elif self.header("content-length"):
            yield self._connection.take(int(self.header("content-length")))
        else:  # until the server closes
            yield self._connection.rest()
            while self._connection.more():
                yield self._connection.rest()
            self._connection.close()
