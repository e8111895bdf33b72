"""Follows a run until it ends: shared by attach, wait, logs -f and the display.

`RunWatch` only reads: it neither prints nor sleeps. The driver is checked before the journal is read, so that a run
that ends in between counts as ended, not lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from longboat.runs.journal_fold import BIRTH, Folder, alive_or_newborn, plan_of
from longboat.runs.run_state import RunState, starting_again
from longboat.runs.store import alive, replica_origin
from longboat.runtime import journal
from longboat.runtime.journal import Event

PAUSE = 0.1
"""Seconds between two polls."""


def release(run: Path, due: float | None = None) -> None:
    """Wait until the driver of an ended run has exited, so that the run can be removed or resumed.

    due: when to give up, by the monotonic clock."""
    while replica_origin(run) is None and alive(run) and (due is None or time.monotonic() < due):
        time.sleep(0.005)


class RunWatch:
    """Follows one run.

    after: the number of events before the run was resumed; an end among them does not count. living: whether the
    driver is alive; by default it checks the run's lock."""

    def __init__(self, run: Path, after: int = 0, living: Callable[[], bool] | None = None) -> None:
        self.run = run
        self.plan = plan_of(run)
        self._reader = journal.JournalReader(str(run))
        self._folder = Folder(run.name, self.plan)
        self._living = living or (lambda: alive_or_newborn(run))
        self._after = after
        self._copied = replica_origin(run) is not None
        self._seen = 0
        self._since = time.monotonic()
        self._alive = True

    def poll(self) -> list[Event]:
        """The events since the last poll; `state` includes them."""
        self._alive = self._living()
        events = list(self._reader.poll())
        for event in events:
            self._folder.feed(event)
        self._seen += len(events)
        if self.plan is None and events:
            self.plan = plan_of(self.run)
        return events

    @property
    def state(self) -> RunState:
        if self._coming_up:
            return starting_again(self._folder.state(True))
        return self._folder.state(self._alive)

    @property
    def over(self) -> bool:
        return self.state.over

    @property
    def _coming_up(self) -> bool:
        """Whether the run was resumed and its new driver has not written yet. On a cluster it may wait for its pod."""
        return 0 < self._after >= self._seen and (
            self._alive and self._copied or time.monotonic() - self._since < BIRTH
        )

    def close(self) -> None:
        self._reader.close()
