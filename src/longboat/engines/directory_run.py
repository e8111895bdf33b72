"""A run whose directory is on this machine: everything that can be read from plan, journal and logs alone.

Engines build their `RunHandle` on it and add how a run starts, stops and is removed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from longboat.engines.interface import Say, silent

if TYPE_CHECKING:  # a start does not wait for these
    from longboat.runs.logs import LogLine
    from longboat.runs.run_files import RunFiles
    from longboat.runs.run_state import RunState
    from longboat.runs.watch import RunWatch
    from longboat.runtime.journal import Event
    from longboat.runtime.plan import Plan


class DirectoryRun:
    engine = ""
    where = "on this machine"
    outlives_cli = False
    poll_interval = 0.05
    """Seconds between two looks of `wait`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.id = directory.name
        self.after = 0

    @property
    def plan(self) -> Plan | None:
        from longboat.runs.journal_fold import plan_of

        return plan_of(self.directory)

    def sync(self, logs: bool = False) -> None:
        """The directory is the run's own."""

    def follow(self, logs: bool, say: Say = silent) -> RunWatch:
        from longboat.runs.watch import RunWatch

        return RunWatch(self.directory, self.after)

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def state(self, explain: bool = False) -> RunState:
        from longboat.runs.journal_fold import load

        return load(self.directory)

    def events(self) -> Iterator[Event]:
        from longboat.runtime import journal

        self.sync()
        return journal.stream(str(self.directory))

    def logs(self) -> Iterator[LogLine]:
        from longboat.runs import logs

        self.sync(logs=True)
        return logs.lines(logs.read(self.directory))

    def wait(self, timeout: float | None = None) -> RunState:
        from longboat.runs.watch import release

        due = None if timeout is None else time.monotonic() + timeout
        while not self._ended(state := self.state()) and state.state != "serving":
            if due is not None and time.monotonic() > due:
                raise TimeoutError(f"{self.id} is still {state.state} after {timeout:g} s")
            time.sleep(self.poll_interval)
        if state.over:
            release(self.directory, due)
        return state

    def _ended(self, state: RunState) -> bool:
        return state.over

    def files(self) -> AbstractContextManager[RunFiles]:
        from longboat.runs.run_files import LocalFiles

        return contextlib.nullcontext(LocalFiles(self.directory, self.plan))

    def fetch(self, path: str) -> Path:
        return self.directory / path
