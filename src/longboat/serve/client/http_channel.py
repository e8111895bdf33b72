"""One HTTP/1.1 connection that sends encoded requests, one at a time.

Made for load tests: it parses only the headers it needs, and takes the time of arrival when the bytes arrive, not when
a coroutine runs.
"""

from __future__ import annotations

import asyncio
import ssl
from time import perf_counter
from typing import Any

from longboat.runtime.light_dataclasses import dataclass
from longboat.serve.client.target import Target

LARGEST_HEAD = 1 << 16


@dataclass(frozen=True)
class ChannelResponse:
    """Result of a request. `error` is a short kind of error, for counting; empty: success."""

    sent: float
    ended: float
    error: str = ""
    detail: str = ""
    body: bytes = b""


class ClientConnection(asyncio.Protocol):
    def __init__(self) -> None:
        self.open = False
        self._transport: Any = None
        self._waiter: asyncio.Future[None] | None = None
        self._buffer = bytearray()
        self._body_at = -1
        self._length = 0
        self._chunked = False
        self._keep = True
        self._failure = ""
        self.status = 0
        self.body = b""
        self.ended = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.open = True

    def ask(self, request: bytes) -> asyncio.Future[None]:
        """Done when the response is in `status` and `body`, or `failure` has the error."""
        self._waiter = asyncio.get_running_loop().create_future()
        if not self.open:  # the server sent data or closed before a request
            self.fail("connection closed")
            return self._waiter
        self._buffer.clear()
        self._body_at, self._chunked, self._failure, self.status = -1, False, "", 0
        self._transport.write(request)
        return self._waiter

    @property
    def failure(self) -> str:
        return self._failure

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._body_at < 0 and not self._head():
            return
        if self._chunked:
            self._chunks()
        elif self._length >= 0 and len(self._buffer) - self._body_at >= self._length:
            self.body = bytes(self._buffer[self._body_at : self._body_at + self._length])
            self._finish()

    def _head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > LARGEST_HEAD or self._buffer[:7] != b"HTTP/1."[: len(self._buffer)]:
                self.fail("not HTTP")
            return False
        lines = bytes(self._buffer[:end]).split(b"\r\n")
        try:
            self.status = int(lines[0][9:12])
            if not lines[0].startswith(b"HTTP/1."):
                raise ValueError
            self._length = 0 if self.status in (204, 304) else -1
            self._keep = not lines[0].startswith(b"HTTP/1.0")
            for line in lines[1:]:
                name, _, value = line.partition(b":")
                name = name.lower()
                if name == b"content-length":
                    self._length = int(value)
                elif name == b"transfer-encoding":
                    self._chunked = value.strip().lower() == b"chunked"
                elif name == b"connection":
                    option = value.strip().lower()
                    self._keep = option == b"keep-alive" or (self._keep and option != b"close")
        except ValueError:
            self.fail("not HTTP")
            return False
        self._body_at = end + 4
        return True

    def _chunks(self) -> None:
        at, parts = self._body_at, list[bytes]()
        while (line := self._buffer.find(b"\r\n", at)) >= 0:
            try:
                size = int(bytes(self._buffer[at:line]).partition(b";")[0], 16)
            except ValueError:
                self.fail("not HTTP")
                return
            if len(self._buffer) < line + 4 + size:
                return
            if size == 0:
                self.body = b"".join(parts)
                self._finish()
                return
            parts.append(bytes(self._buffer[line + 2 : line + 2 + size]))
            at = line + 4 + size

    def _finish(self) -> None:
        self.ended = perf_counter()
        if not self._keep:
            self.close()
        self._done()

    def fail(self, kind: str) -> None:
        """Fail the request and close the connection."""
        self.ended = perf_counter()
        self._failure = self._failure or kind
        self.close()
        self._done()

    def _done(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        if self._waiter is not None and not self._waiter.done():
            if self._body_at >= 0 and self._length < 0 and not self._chunked and error is None:
                self.body = bytes(self._buffer[self._body_at :])  # the body ends with the connection
                self._finish()
            else:
                self.fail("connection reset" if error else "connection closed")

    def close(self) -> None:
        self.open = False
        if self._transport is not None:
            self._transport.abort()


class HttpChannel:
    """Sends requests to one server, one after the other, and reconnects after a lost connection."""

    def __init__(self, target: Target, timeout: float) -> None:
        self._target, self._timeout = target, timeout
        self._connection: ClientConnection | None = None
        self._tls = tls_context(target) if target.tls else None

    async def call(self, request: bytes) -> ChannelResponse:
        sent = perf_counter()
        connection = self._connection
        if connection is None or not connection.open:
            try:
                connection = await self._connect()
            except TimeoutError:
                return ChannelResponse(sent, perf_counter(), "timeout", f"no connection after {self._timeout:g} s")
            except ssl.SSLError as error:
                return ChannelResponse(sent, perf_counter(), "TLS", str(error.reason or error))
            except OSError as error:
                kind = "refused" if isinstance(error, ConnectionRefusedError) else "no connection"
                return ChannelResponse(sent, perf_counter(), kind, error.strerror or str(error))
        timer = asyncio.get_running_loop().call_later(self._timeout, connection.fail, "timeout")
        try:
            await connection.ask(request)
        finally:
            timer.cancel()
        if connection.failure:
            return ChannelResponse(sent, connection.ended, connection.failure)
        if connection.status != 200:
            return ChannelResponse(
                sent, connection.ended, f"HTTP {connection.status}", reason(connection.body), connection.body
            )
        return ChannelResponse(sent, connection.ended, body=connection.body)

    async def _connect(self) -> ClientConnection:
        loop = asyncio.get_running_loop()
        opening = loop.create_connection(ClientConnection, self._target.host, self._target.port, ssl=self._tls)
        _, connection = await asyncio.wait_for(opening, self._timeout)
        self._connection = connection
        return connection

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def tls_context(target: Target) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=target.ca or None)


def reason(body: bytes) -> str:
    """The server's error message: {"error": ...} in both protocols, else the start of the body."""
    import json

    try:
        document = json.loads(body)
    except ValueError:
        return body[:200].decode("utf-8", "replace").strip()
    error = document.get("error", document.get("detail", "")) if isinstance(document, dict) else document
    if isinstance(error, dict):
        error = error.get("message", error)
    return str(error)[:300]
