"""As much of HTTP/1.1 as an API server speaks: requests in turn on one connection, answers whole or line by line.

Not http.client, because that imports the mail parser and a dozen other modules, which an image whose
library was never compiled pays for at each start of a driver: a tenth of a second of its processor.
"""

from __future__ import annotations

import socket
from typing import Callable, Dict, Iterator, Mapping, Optional

PIECE = 1 << 16
HEAD_MOST = 1 << 20
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~")


class ConnectionClosed(ConnectionError):
    """The server has closed the connection before it answered: it may have lain idle for too long."""


class BadResponse(Exception):
    """What came is not HTTP, or ended in the middle."""


def quoted(text: str, safe: str = "") -> str:
    """Percent-encoded for a path or a query."""
    plain = _PLAIN | set(safe.encode())
    return "".join(chr(byte) if byte in plain else f"%{byte:02X}" for byte in text.encode())


class HttpConnection:
    """Dials when it is first used."""

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
            words = first.split(None, 2)
            if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
                raise BadResponse(f"not an answer of HTTP: {first[:80]!r}")
            pairs = (line.partition(":") for line in lines)
            answer = HttpResponse(
                self, int(words[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}
            )
            if answer.status >= 200:  # else more is to come
                return answer

    def wait_for_ever(self) -> None:
        """From now on, for the next byte."""
        if self._socket is not None:
            self._socket.settimeout(None)

    # For the answer.

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
                raise BadResponse("the answer ended in the middle")
            parts.append(self._rest)
            have += len(self._rest)
        whole = b"".join(parts)
        self._rest = whole[count:]
        return whole[:count]

    def rest(self) -> bytes:
        """What has come and was not taken."""
        data, self._rest = self._rest, b""
        return data

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._rest:
            if len(self._rest) > HEAD_MOST:
                raise BadResponse("the head of an answer has no end")
            if not self.more():
                if self._rest:
                    raise BadResponse("the answer ended in its head")
                raise ConnectionClosed("the server closed the connection")
        found, _, self._rest = self._rest.partition(mark)
        return found

    def line(self) -> bytes:
        return self._until(b"\r\n")


class HttpResponse:
    """Read it to its end before the next request on its connection."""

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
        """Each as soon as it has come. keep: with the newline that ends it, so that one can tell a last line that has
        none."""
        rest, end = b"", b"\n" if keep else b""
        for piece in self._pieces():
            *whole, rest = (rest + piece).split(b"\n")
            yield from (line + end for line in whole)
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
