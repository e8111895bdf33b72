"""The restarts a gang may still spend, and when it should not although it could.

A failure costs one; a cause the job is not to blame for costs none; a newer complete checkpoint
fills the purse again. The same failure twice without progress in between is not tried a third time;
different ones are, but after the second one waits ever longer, so that a gang that crashes at once
does not do so a hundred times a second. So does one whose agents are taken away again and again, though that is free;
those that go with one machine count as one.
"""

from __future__ import annotations

from typing import Any, Optional, Set, Tuple

from longboat.runtime.causes import HOPELESS, Cause, CauseKind
from longboat.runtime.gang.gang_events import GangRules, Seat

FREE = frozenset({CauseKind.PREEMPTED, CauseKind.SUPERVISOR_LOST})
"""Causes that cost no restart: the job is not to blame."""

SAME = "the same failure twice without progress"
AT_ONCE = 2
"""Failures in a row without progress after which the next generation starts at once."""
PAUSE_MOST = 60.0
"""Seconds; the pause before a generation doubles until then."""


class RestartBudget:
    def __init__(self, rules: GangRules, left: Optional[int] = None) -> None:
        """left: what an earlier driver has left in it."""
        self.left = rules.restarts if left is None else left
        self._rules = rules
        self._step = -1
        """How far the present generation has come."""
        self._best = -1
        """How far any has come."""
        self._last: Optional[Tuple[Any, ...]] = None
        self.vain = 0
        """Failures in a row without progress."""
        self._taken: Set[Seat] = set()
        """Seats that lost their agent for nothing since the last generation started."""

    def begin(self) -> None:
        """A generation starts."""
        self._step = -1
        self._taken.clear()

    def reached(self, step: int) -> None:
        self._step = max(self._step, step)

    def refill(self) -> None:
        self.left, self._last, self.vain = self._rules.restarts, None, 0

    def refusal(self, cause: Cause) -> str:
        """Why this failure is not followed by a restart; empty when it is."""
        if cause.kind in HOPELESS or cause.kind is CauseKind.TIMED_OUT:
            return "a restart would not help"
        if cause.kind in FREE:
            return ""
        if self.left <= 0:
            return "no restarts left"
        return SAME if self._last == self._failure(cause) else ""

    def pay(self, cause: Cause) -> bool:
        """Pays for the restart after this failure; False when there is to be none."""
        if self.refusal(cause):
            return False
        self.left -= cause.kind not in FREE
        self._last = self._failure(cause) if cause.kind is CauseKind.USER_ERROR else None
        if self._step > self._best:
            self._best, self.vain = self._step, 0
        elif cause.kind not in FREE or not self._taken or (cause.role, cause.rank) in self._taken:
            self.vain += 1
        if cause.kind in FREE:
            self._taken.add((cause.role, cause.rank))
        return True

    @property
    def pause(self) -> float:
        """Seconds to wait before the next generation, or the next agent of a seat."""
        return 0.0 if self.vain <= AT_ONCE else min(2.0 ** (self.vain - AT_ONCE - 1), PAUSE_MOST)

    def _failure(self, cause: Cause) -> Tuple[Any, ...]:
        """What makes two failures the same: kind, place in the code, and how far training had come; of
        seats that live alone, the seat too."""
        seat: Seat = (cause.role, cause.rank)
        _, alone = self._rules.seats.get(seat, (False, False))
        step = max(self._step, self._best)
        return (seat if alone else None, cause.kind, cause.exit_code, cause.signal, cause.frame, cause.error, step)
