"""A clock that stands still while this process does not run."""

from __future__ import annotations

import time
from typing import Callable

PAUSE = 5.0
"""Seconds between two readings from which on the process was paused: the driver's loop reads every second."""


class RunningClock:
    """Monotonic time without the pauses of this process: Ctrl-Z, SIGSTOP, `docker pause`, a laptop that sleeps.

    Leases and timeouts on this clock do not run out in a pause. After it the driver reads what arrived meanwhile
    before it judges who is silent.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._last = monotonic()
        self.paused = 0.0
        """Seconds of all pauses so far."""

    def __call__(self) -> float:
        now = self._monotonic()
        if now - self._last > PAUSE:
            self.paused += now - self._last
        self._last = now
        return now - self.paused
