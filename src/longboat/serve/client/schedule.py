"""Schedules of a load test: closed loop (one after the other) and open loop (fixed rate).

A closed loop sends fewer requests while a server stalls, and so omits the slowest ones from its numbers (coordinated
omission). In an open loop each request's time is fixed before the test starts, and its latency counts from that time.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import os
import struct
import sys
from collections import deque
from collections.abc import Callable
from functools import cache
from time import perf_counter
from typing import Protocol

EVERYTHING = sys.maxsize


class Schedule(Protocol):
    async def next(self) -> tuple[int, float] | None:
        """The next request's number and due time (0 without a rate); None: there are no more."""

    def close(self) -> None: ...


class AtOnce:
    """The closed loop: a request is due when a connection is free."""

    def __init__(self, first: int, last: int, duration: float = 0.0) -> None:
        self._next, self._last = first, last
        self._until = perf_counter() + duration if duration else math.inf

    async def next(self) -> tuple[int, float] | None:
        if self._next >= self._last or perf_counter() >= self._until:
            return None
        self._next += 1
        return self._next - 1, 0.0

    def close(self) -> None:
        pass


class AtRate:
    """The open loop: request k is due k / rate seconds after the start."""

    def __init__(self, first: int, last: int, rate: float, duration: float = 0.0, patience: float = math.inf) -> None:
        """patience: seconds after the last due time when sending stops."""
        self._first, self._rate = first, rate
        self._last = min(last, first + max(1, round(rate * duration))) if duration else last
        self._next = self._due = first
        """The next request to send, and the first that is not due; those between wait for a connection."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._began = perf_counter()
        self._stop = self._time(self._last) + patience
        self._alarm = Alarm(self._wake)
        self._wake()

    def _time(self, number: int) -> float:
        return self._began + (number - self._first) / self._rate

    def _wake(self) -> None:
        """Wake the connections for requests that are due, and set the timer for the next one."""
        passed = perf_counter() - self._began
        self._due = min(self._last, self._first + int(passed * self._rate) + 1)
        for _ in range(self._due - self._next):
            if not self._waiting:
                break
            _let_go(self._waiting.popleft())
        if self._due < self._last:
            self._alarm.at(self._time(self._due))

    async def next(self) -> tuple[int, float] | None:
        while self._next >= self._due:
            if self._next >= self._last:
                return None
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        if perf_counter() > self._stop:
            return None
        number = self._next
        self._next += 1
        if self._next >= self._last:
            while self._waiting:
                _let_go(self._waiting.popleft())
        return number, self._time(number)

    @property
    def left(self) -> int:
        """Number of requests that were never sent."""
        return self._last - self._next

    def close(self) -> None:
        self._alarm.close()


def _let_go(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Alarm:
    """A timer with a precision of tens of microseconds, by Linux's timerfd if available: the loop's timers have a
    resolution of milliseconds, which is longer than a fast response takes."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._fd = _timerfd()
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._ring)

    def at(self, moment: float) -> None:
        delay = max(moment - perf_counter(), 0.0)
        if self._fd >= 0 and _set(self._fd, delay):
            return
        self._timer = self._loop.call_later(delay, self._callback)

    def _ring(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        self._callback()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1


_CLOCK_MONOTONIC = 1


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _timerfd() -> int:
    """A timerfd descriptor, or -1. Python has its own from 3.13 on."""
    if sys.platform != "linux":
        return -1
    try:
        return int(_libc().timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
    except (AttributeError, OSError):
        return -1


def _set(fd: int, delay: float) -> bool:
    nanoseconds = max(1, int(delay * 1e9))
    value = struct.pack("qqqq", 0, 0, nanoseconds // 1_000_000_000, nanoseconds % 1_000_000_000)
    return bool(_libc().timerfd_settime(fd, 0, value, None) == 0)
