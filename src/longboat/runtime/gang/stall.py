"""Stall detection: a rank stops reporting progress, or no rank ever reports.

The stacks of hung ranks are requested first. Ranks that are still silent after a short wait count as
hung; if they report meanwhile, the watch starts over.
"""

from __future__ import annotations

from typing import List, Mapping, NamedTuple

from longboat.runtime.gang.gang_events import GangRules
from longboat.runtime.gang.members import Member, MemberState
from longboat.runtime.seat import Seat


class StallFinding(NamedTuple):
    """Result of one look at the gang."""

    dump_stacks: List[Seat]
    """Seats to request stacks from."""
    hung: List[Seat]
    """Seats that hang for certain."""


class StallWatch:
    """Watches the progress of a gang's running ranks."""

    def __init__(self, rules: GangRules) -> None:
        self._rules = rules
        self._since = 0.0
        """When the generation started, or a restarted driver continued it."""
        self._asked_at = 0.0
        """When stacks were requested; 0: not yet."""
        self._next_look = 0.0

    def begin(self, now: float) -> None:
        self._since, self._asked_at = now, 0.0
        self._next_look = now + self._rules.stall_after

    @property
    def due(self) -> float:
        return self._asked_at + self._rules.stacks_wait if self._asked_at else self._next_look

    def look(self, members: Mapping[Seat, Member], now: float) -> StallFinding:
        hung = self._hung(members, self._asked_at or now)
        if not hung:
            self._asked_at = 0.0
            self._next_look = now + min(1.0, self._rules.stall_after)
            return StallFinding([], [])
        if not self._asked_at:
            self._asked_at = now
            return StallFinding(hung, [])
        if now < self._asked_at + self._rules.stacks_wait:
            return StallFinding([], [])
        self._asked_at = 0.0
        return StallFinding([], hung)

    def _hung(self, members: Mapping[Seat, Member], now: float) -> List[Seat]:
        limit = self._rules.stall_after
        running = {seat: m for seat, m in members.items() if m.at is MemberState.RUNNING}
        if all(m.progress_at < 0 for m in running.values()):
            return list(running) if now >= self._since + limit else []
        silent = [seat for seat, m in running.items() if 0 <= m.progress_at <= now - limit]
        if silent and not all(members[seat].alone for seat in silent):
            return list(running)
        return silent
