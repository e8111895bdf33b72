"""HTTP/1.1 server: parses requests and writes responses. It knows nothing about their contents.

Each connection has one protocol object with an httptools parser. Its rules:
- It answers one request at a time; pipelined requests wait, and reading pauses while they do.
- Everything has a limit: header bytes, body bytes (of one request, and of all), time to send a request, time to read a
  response.
- Unauthorized clients are refused before their body is read.
- A request whose client disconnects is cancelled.
- After a protocol error the server sends an error message and reads the rest of the client's data before it closes the
  connection, so that the client sees the message and not a reset.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any

import httptools

from longboat.runtime.light_dataclasses import dataclass
from longboat.serve.request_errors import RefusalReason, RequestRefused, log_refusal, unforeseen

PHRASES = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
    408: "Request Timeout", 413: "Content Too Large", 415: "Unsupported Media Type", 429: "Too Many Requests",
    431: "Request Header Fields Too Large", 499: "Client Closed Request", 500: "Internal Server Error",
    501: "Not Implemented", 503: "Service Unavailable", 504: "Gateway Timeout",
}  # fmt: skip
JSON = b"application/json"
LINGER = 2.0
"""Seconds that a client has to close a connection after the server's side is closed."""
_OK_JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
REQUEST_ID = b"x-request-id"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True)
class HttpLimits:
    """Limits of a connection."""

    body: int = 64 << 20
    headers: int = 64 << 10
    request: float = 60.0
    """Seconds to send a request, from first to last byte, and to read a response."""
    idle: float = 75.0
    """Seconds that a connection may be idle between requests."""
    connections: int = 16384
    held: int = 1 << 30
    """Maximum bytes of all unanswered bodies; one body of maximum size is always accepted."""


class Request:
    """A complete request."""

    __slots__ = ("began", "body", "cancel", "connection", "headers", "keep", "method", "refused", "url")

    def __init__(self, connection: ServerConnection, method: bytes, url: bytes, headers: dict[bytes, bytes]) -> None:
        self.connection = connection
        self.method, self.url, self.headers = method, url, headers
        self.body = b""
        self.keep = True
        self.refused: RequestRefused | None = None
        """Why it is refused, known from its headers."""
        self.began = 0.0
        self.cancel: Callable[[], None] | None = None
        """Called when the client disconnects before the response."""

    def json(self, body: bytes) -> None:
        """Send the common response: 200 with JSON."""
        if self.method == b"HEAD":
            self.reply(200, body)
        else:
            self.connection.answer(self, _OK_JSON % (len(body), body))

    def reply(
        self, status: int, body: bytes, kind: bytes = JSON, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        lines = [b"HTTP/1.1 %d %b" % (status, PHRASES[status].encode()), b"Content-Type: " + kind]
        lines += [name + b": " + value for name, value in headers]
        head = b"\r\n".join([*lines, b"Content-Length: %d\r\n\r\n" % len(body)])
        self.connection.answer(self, head if self.method == b"HEAD" else head + body)

    def content(self, most: int) -> bytes:
        """The body without its content encoding."""
        coding = self.headers.get(b"content-encoding", b"identity").strip().lower()
        if coding in (b"", b"identity"):
            return self.body
        windows = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}.get(coding)
        if windows is None:
            raise RequestRefused(RefusalReason.MEDIA, "Content-Encoding must be gzip, deflate or identity")
        unpacking = zlib.decompressobj(windows)
        try:
            content = unpacking.decompress(self.body, most + 1)
        except zlib.error as error:
            raise RequestRefused(RefusalReason.INVALID, f"the body is not valid {coding.decode()}: {error}") from None
        if len(content) > most:
            raise RequestRefused(RefusalReason.TOO_LARGE, f"the decompressed body is larger than {most} bytes")
        if not unpacking.eof:
            raise RequestRefused(RefusalReason.INVALID, f"the {coding.decode()} body is truncated")
        return content


Handler = Callable[[Request], None]
"""A handler calls request.reply(...) once, now or later, or raises RequestRefused."""


class HttpSite:
    """State shared by all connections of a process."""

    def __init__(
        self,
        handler: Handler,
        admit: Callable[[Request], RequestRefused | None],
        error: Callable[[RequestRefused], bytes],
        bounds: HttpLimits,
    ) -> None:
        self.handler, self.admit, self.error, self.bounds = handler, admit, error, bounds
        self.open: set[ServerConnection] = set()
        self.held = 0
        """Bytes of unanswered bodies."""
        self.draining = False

    def connection(self) -> ServerConnection:
        return ServerConnection(self)

    def sweep(self) -> None:
        """Close connections that have timed out, every second."""
        now = time.monotonic()
        for connection in list(self.open):
            connection.check(now)

    def drain(self) -> None:
        """Close idle connections now, and the others after their current response."""
        self.draining = True
        for connection in list(self.open):
            if not connection.busy:
                connection.close()

    @property
    def busy(self) -> bool:
        return any(connection.busy for connection in self.open)


class ServerConnection(asyncio.Protocol):
    __slots__ = (
        "_chunks", "_closing", "_current", "_half", "_head", "_headers", "_heard", "_held", "_parser", "_paused",
        "_ready", "_request", "_seen", "_site", "_size", "_started", "_transport", "_url", "_written",
    )  # fmt: skip

    def __init__(self, site: HttpSite) -> None:
        self._site = site
        self._parser = httptools.HttpRequestParser(self)
        self._transport: Any = None
        self._headers: dict[bytes, bytes] = {}
        self._head = 0
        """Bytes of the current request's headers."""
        self._url = b""
        self._chunks: list[bytes] = []
        self._size = 0
        self._held = 0
        """Bytes of the bodies of its unanswered requests."""
        self._seen = 0
        """Bytes received since the last request, while the headers are incomplete."""
        self._request: Request | None = None
        """The request whose headers are complete and whose body is not."""
        self._current: Request | None = None
        """The request that is being answered."""
        self._ready: deque[Request] = deque()
        self._started = 0.0
        """When the first byte of the incomplete request arrived; 0: between requests."""
        self._heard = time.monotonic()
        self._written = 0.0
        """Since when the client has not read; 0: it reads."""
        self._paused = False
        self._half = False
        """The client has closed its side."""
        self._closing = 0.0
        """When to close in any case; 0: not closing."""

    @property
    def busy(self) -> bool:
        return self._current is not None or self._request is not None or bool(self._ready) or self._written > 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._site.open.add(self)
        if len(self._site.open) > self._site.bounds.connections:
            self._refuse(RequestRefused(RefusalReason.UNAVAILABLE, "too many connections"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._site.open.discard(self)
        self._ready.clear()
        self._let_go(self._held)
        current, self._current = self._current, None
        if current is not None and current.cancel is not None:
            current.cancel()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if not self._started:
            self._started = time.monotonic()
        if self._request is None:
            self._seen += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._half = True  # the upgrade is ignored; what follows is not HTTP
        except httptools.HttpParserCallbackError as error:
            refused = error.__context__ if isinstance(error.__context__, RequestRefused) else None
            self._refuse(refused or RequestRefused(RefusalReason.INVALID, "cannot parse the request"))
        except httptools.HttpParserError as error:
            self._refuse(RequestRefused(RefusalReason.INVALID, f"not a valid HTTP/1.1 request: {error}"))
        else:
            if self._request is None and self._seen > self._site.bounds.headers and self._started:
                self._refuse(self._too_many_headers())

    def _too_many_headers(self) -> RequestRefused:
        return RequestRefused(RefusalReason.HEADERS, f"the headers are larger than {self._site.bounds.headers} bytes")

    def eof_received(self) -> bool:
        """The client has closed its side, but may still wait for responses."""
        self._half = True
        return self.busy and not self._closing and self._request is None

    def pause_writing(self) -> None:
        self._written = time.monotonic()

    def resume_writing(self) -> None:
        self._written = 0.0
        self._next()

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        self._headers = {}
        self._head = 0
        self._url = b""
        self._chunks = []
        self._size = 0

    def on_url(self, url: bytes) -> None:
        self._url = self._url + url if self._url else url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head += len(name) + len(value) + 4
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        most = self._site.bounds.body
        headers = self._headers
        if self._head + len(self._url) > self._site.bounds.headers:
            raise self._too_many_headers()
        length = headers.get(b"content-length")
        if length is not None and int(length) > most:
            raise RequestRefused(
                RefusalReason.TOO_LARGE, f"the body has {int(length)} bytes; the limit is {most} (--max-body)"
            )
        request = Request(self, self._parser.get_method(), self._url, headers)
        request.keep = self._parser.should_keep_alive() and not self._site.draining
        if self._parser.should_upgrade():
            request.keep = False
            if length is not None or b"transfer-encoding" in headers or request.method == b"CONNECT":
                raise RequestRefused(RefusalReason.INVALID, "protocol upgrades are not supported")
        request.refused = self._site.admit(request)
        if request.refused is not None and (b"transfer-encoding" in headers or int(length or 0) > 0):
            raise request.refused
        self._request = request
        if b"expect" in headers and headers[b"expect"].lower() == b"100-continue" and not self._ready:
            self._transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        site, bounds = self._site, self._site.bounds
        self._size += len(body)
        if self._size > bounds.body:
            raise RequestRefused(RefusalReason.TOO_LARGE, f"the body is larger than {bounds.body} bytes (--max-body)")
        most = max(bounds.held, bounds.body)
        if site.held + len(body) > most:
            others = site.held - self._held
            raise RequestRefused(
                RefusalReason.UNAVAILABLE,
                f"the server is busy with {others} bytes of other requests (limit {most}): try again",
            )
        self._held += len(body)
        site.held += len(body)
        self._chunks.append(body)

    def _let_go(self, count: int) -> None:
        self._held -= count
        self._site.held -= count

    def on_message_complete(self) -> None:
        request = self._request
        if request is None:
            return
        chunks = self._chunks
        request.body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._request = None
        self._seen = 0
        self._started = 0.0
        self._heard = time.monotonic()
        if self._current is None and not self._ready and not self._written:
            self._handle(request)
            return
        self._ready.append(request)
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    # Responses.

    def _handle(self, request: Request) -> None:
        self._current = request
        request.began = time.perf_counter()
        try:
            if request.refused is not None:
                raise request.refused
            self._site.handler(request)
        except RequestRefused as refused:
            self.fail(request, refused)
        except Exception as error:
            self.fail(request, unforeseen(error))

    def fail(self, request: Request, refused: RequestRefused) -> None:
        request_id = request.headers.get(REQUEST_ID, b"").decode("latin-1")
        log_refusal((request.method + b" " + request.url.partition(b"?")[0]).decode("latin-1"), request_id, refused)
        body = self._site.error(refused)
        extra = ((b"Retry-After", b"1"),) if refused.reason in (RefusalReason.BUSY, RefusalReason.UNAVAILABLE) else ()
        if refused.reason is RefusalReason.UNAUTHENTICATED:
            extra = ((b"WWW-Authenticate", b"Bearer"),)
        request.reply(refused.reason.http, body, JSON, extra)

    def answer(self, request: Request, content: bytes) -> None:
        """Write the response to the current request, then start the next one."""
        if self._current is not request:
            return  # the client has disconnected
        self._current = None
        self._let_go(len(request.body))
        if not request.keep or self._site.draining or (self._half and not self._ready):
            content = content.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
            self._transport.write(content)
            self._ready.clear()
            self._hang_up()
            return
        self._transport.write(content)
        if self._ready:
            # Not called directly: a thousand pipelined requests would be a thousand calls deep.
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        if self._current is not None or self._written or self._closing:
            return
        if self._ready:
            self._handle(self._ready.popleft())
        if not self._ready and self._paused:
            self._paused = False
            self._transport.resume_reading()

    def _refuse(self, refused: RequestRefused) -> None:
        """Respond to a request that cannot be parsed. Earlier unanswered requests of the connection are lost."""
        if self._closing:
            return
        self._ready.clear()
        self._request = None
        current, self._current = self._current, None
        if current is not None and current.cancel is not None:
            current.cancel()
        request = Request(self, b"", self._url, {})
        request.keep = False
        self._current = request
        self.fail(request, refused)

    def _hang_up(self) -> None:
        """Close the server's side now, and the connection when the client closes too or after a timeout."""
        self._closing = time.monotonic() + LINGER
        self._chunks = []
        self._let_go(self._held)
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def close(self) -> None:
        self._transport.close()

    def check(self, now: float) -> None:
        bounds = self._site.bounds
        if self._closing:
            if self._transport.get_write_buffer_size() and now - self._heard < bounds.request:
                self._closing = now + LINGER  # it still reads its response
            elif now > self._closing:
                self._transport.abort()
        elif self._written:
            if now - self._written > bounds.request:
                self._transport.abort()
        elif self._current is not None or self._ready:
            return
        elif self._started:
            if now - self._started > bounds.request:
                self._refuse(
                    RequestRefused(RefusalReason.SLOW, f"the request was not complete after {bounds.request:g} seconds")
                )
        elif now - self._heard > bounds.idle:
            self._transport.close()
