"""Following a run until it is over: the one loop body that attach, wait, logs -f and the display share.

It reads; it never prints, and a `Watch` never sleeps. The driver is asked after before the journal is
read, so that a run which ends between the two looks is seen as ended, not as lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from longboat.runs.journal_fold import BIRTH, Folder, alive_or_newborn, plan_of
from longboat.runs.run_state import RunState, starting_again
from longboat.runs.store import alive, mirrored
from longboat.runtime import journal
from longboat.runtime.journal import Event

PAUSE = 0.1
"""Seconds to wait between two looks."""


def release(run: Path, due: float | None = None) -> None:
    """Waits until the driver of a run that has ended is gone, so that the run can be removed or taken up again: it has
    written the end and is on its way out. due: when to give up, by the monotonic clock."""
    while mirrored(run) is None and alive(run) and (due is None or time.monotonic() < due):
        time.sleep(0.005)


class RunWatch:
    """`after`: that many events were there before the run was taken up again; an end among
    them is not the end. `living`: asks after the driver, by its lock if not said otherwise."""

    def __init__(self, run: Path, after: int = 0, living: Callable[[], bool] | None = None) -> None:
        self.run = run
        self.plan = plan_of(run)
        self._reader = journal.JournalReader(str(run))
        self._folder = Folder(run.name, self.plan)
        self._living = living or (lambda: alive_or_newborn(run))
        self._after = after
        self._copied = mirrored(run) is not None
        self._seen = 0
        self._since = time.monotonic()
        self._alive = True

    def poll(self) -> list[Event]:
        """The events since the last look; the state is up to date with them."""
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
        """Taken up again, but its driver has not written yet. In a cluster that one may have to wait for its pod."""
        return 0 < self._after >= self._seen and (
            self._alive and self._copied or time.monotonic() - self._since < BIRTH
        )

    def close(self) -> None:
        self._reader.close()
