"""Common path of a prediction over HTTP: wait for the batch, count, respond, or cancel.

All protocols share it, so that none can forget metrics, deadline or disconnected clients.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from longboat.serve.batching import Batcher, BatchItem
from longboat.serve.http_server import Handler, Request
from longboat.serve.metrics import ProcessMetrics
from longboat.serve.request_errors import RequestRefused, unforeseen

if TYPE_CHECKING:
    import numpy as np

    Outputs = dict[str, np.ndarray[Any, Any]]
    Write = Callable[[Request, Outputs], None]

TIMEOUT_HEADER = b"x-request-timeout-ms"


class RequestCounters:
    """Metrics of one model over one protocol, looked up once and kept by the route."""

    __slots__ = ("_base", "_codes", "_numbers", "_timing")

    def __init__(self, numbers: ProcessMetrics, model: str, protocol: str) -> None:
        self._numbers = numbers
        self._base = (("model", model), ("protocol", protocol))
        self._timing = numbers.timing(self._base)
        self._codes: dict[int, tuple[str, Any]] = {}

    def add(self, code: int, seconds: float) -> None:
        key = self._codes.get(code)
        if key is None:
            key = self._codes[code] = ("longboat_requests_total", (*self._base, ("code", str(code))))
        counters = self._numbers.counters
        counters[key] = counters.get(key, 0) + 1
        self._timing.add(seconds)


def counted(counting: RequestCounters, handler: Handler) -> Handler:
    """Wrap a handler so that requests it refuses are counted too."""

    def handle(request: Request) -> None:
        try:
            handler(request)
        except RequestRefused as refused:
            counting.add(refused.reason.http, time.perf_counter() - request.began)
            raise

    return handle


class HttpPrediction:
    """An HTTP request in a batcher."""

    __slots__ = ("_batcher", "_counting", "_request", "_work", "_write")

    def __init__(self, request: Request, batcher: Batcher, write: Write, counting: RequestCounters) -> None:
        self._request, self._batcher, self._write, self._counting = request, batcher, write, counting
        self._work: BatchItem | None = None

    def ask(self, inputs: Outputs, rows: int, deadline: float = 0.0) -> None:
        request = self._request
        if not deadline and TIMEOUT_HEADER in request.headers:
            deadline = _deadline(request.headers[TIMEOUT_HEADER])
        self._work = self._batcher.submit(inputs, rows, self._done, deadline)
        request.cancel = self._cancel

    def _done(self, outputs: Outputs | None, refused: RequestRefused | None) -> None:
        request = self._request
        request.cancel = None
        code = 200
        if outputs is not None:
            try:
                self._write(request, outputs)
            except RequestRefused as late:
                refused = late
            except Exception as error:  # the other requests of this batch still need their responses
                refused = unforeseen(error)
        if refused is not None:
            code = refused.reason.http
            request.connection.fail(request, refused)
        self._counting.add(code, time.perf_counter() - request.began)

    def _cancel(self) -> None:
        if self._work is not None:
            self._batcher.cancel(self._work)
            self._counting.add(499, time.perf_counter() - self._request.began)


def _deadline(value: bytes) -> float:
    """The deadline from a number of milliseconds; 0 if it is not valid."""
    try:
        wait = float(value)
    except ValueError:
        return 0.0
    return time.monotonic() + wait / 1000 if 0 < wait < 1e9 else 0.0
