"""Restart budget: how many restarts a gang has left, and when not to use one.

A failure costs one restart; causes that are not the job's fault are free. A newer complete checkpoint
refills the budget. The same failure twice without progress stops the gang: retrying a typo helps nobody.
Other failures without progress are retried, from the third in a row on after a pause of 1, 2, 4 ... 60 s.
The pause also applies to agents that keep getting preempted; agents lost with one machine count once.
"""

from __future__ import annotations

from typing import Any, Optional, Set, Tuple

from longboat.runtime.causes import HOPELESS, Cause, CauseKind
from longboat.runtime.gang.gang_events import GangRules
from longboat.runtime.seat import Seat

FREE = frozenset({CauseKind.PREEMPTED, CauseKind.DRIVER_LOST})
"""Causes that cost no restart: not the job's fault."""

SAME = "the same failure twice without progress"
AT_ONCE = 2
"""Failures in a row without progress that are retried without a pause."""
PAUSE_MOST = 60.0
"""Seconds; the pause before a generation doubles up to this."""


class RestartBudget:
    """Restart budget of one gang."""

    def __init__(self, rules: GangRules, left: Optional[int] = None) -> None:
        """left: restarts left by an earlier driver."""
        self.left = rules.restarts if left is None else left
        self._rules = rules
        self._step = -1
        """Highest step of the current generation."""
        self._best = -1
        """Highest step of any generation."""
        self._last: Optional[Tuple[Any, ...]] = None
        self.without_progress = 0
        """Failures in a row without progress."""
        self._preempted: Set[Seat] = set()
        """Seats that lost their agent at no cost since the last generation started."""

    def begin(self) -> None:
        """A generation starts."""
        self._step = -1
        self._preempted.clear()

    def reached(self, step: int) -> None:
        self._step = max(self._step, step)

    def refill(self) -> None:
        self.left, self._last, self.without_progress = self._rules.restarts, None, 0

    def refusal(self, cause: Cause) -> str:
        """Why there is no restart after this failure; empty if there is."""
        if cause.kind in HOPELESS or cause.kind is CauseKind.TIMED_OUT:
            return "a restart would not help"
        if cause.kind in FREE:
            return ""
        if self.left <= 0:
            return "no restarts left"
        return SAME if self._last == self._failure(cause) else ""

    def pay(self, cause: Cause) -> bool:
        """Pay for the restart after this failure; False if there is none."""
        if self.refusal(cause):
            return False
        self.left -= cause.kind not in FREE
        self._last = self._failure(cause) if cause.kind is CauseKind.USER_ERROR else None
        if self._step > self._best:
            self._best, self.without_progress = self._step, 0
        elif cause.kind not in FREE or not self._preempted or cause.seat in self._preempted:
            self.without_progress += 1
        if cause.kind in FREE:
            self._preempted.add(cause.seat)
        return True

    @property
    def pause(self) -> float:
        """Seconds to wait before the next generation or the next agent of a seat."""
        return (
            0.0 if self.without_progress <= AT_ONCE else min(2.0 ** (self.without_progress - AT_ONCE - 1), PAUSE_MOST)
        )

    def _failure(self, cause: Cause) -> Tuple[Any, ...]:
        """What makes two failures the same: kind, place in the code and highest step; for seats that restart
        alone also the seat."""
        _, alone = self._rules.seats.get(cause.seat, (False, False))
        step = max(self._step, self._best)
        return (
            cause.seat if alone else None,
            cause.kind,
            cause.exit_code,
            cause.signal,
            cause.frame,
            cause.error,
            step,
        )
