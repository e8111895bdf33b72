"""Begins runs on this machine: from a plan, or from a run that is to go on.

A `Started` run has its directory and its plan on disk; nothing runs yet. Drive it in this
process, or let a process of its own drive it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from windlass import journal, layout, lock
from windlass import plan as plans
from windlass.engines.local import engine
from windlass.errors import WindlassError
from windlass.plan import Plan
from windlass.runs.store import Store


@dataclass(frozen=True)
class Started:
    plan: Plan
    directory: str
    home: str
    environ: Mapping[str, str]
    events: int = 0
    """How many the journal held before: the run is resumed when there are any."""

    @property
    def id(self) -> str:
        return os.path.basename(self.directory)

    def drive(self, begun: Callable[[], None] | None = None) -> int:
        """Runs it in this process to its end; the exit code."""
        return engine.drive(self.plan, self.directory, self.home, self.environ, begun)

    def detach(self) -> bool:
        """Lets a process of its own drive it; True once that has begun. Call it from a process
        with one thread."""
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _drive_alone(self)
        while True:
            if len(journal.read(self.directory)) > self.events:
                from windlass.engines.local import provenance

                provenance.write(self.plan, self.directory)
                return True
            if os.waitpid(pid, os.WNOHANG)[0]:
                return len(journal.read(self.directory)) > self.events
            time.sleep(0.005)


def opened(plan: Plan, home: str, environ: Mapping[str, str]) -> Started:
    """A new run of the plan. What the machine lacks is found before anything is created."""
    engine.check(plan, environ)
    store = Store(home)
    run = store.create(plan.name)
    directory = str(run)
    try:
        with open(os.path.join(directory, layout.PLAN), "w") as file:
            file.write(plans.to_json(plan))
    except OSError as error:
        store.remove(run)
        raise WindlassError(
            f"a run cannot be kept in {store.root}: {error.strerror}",
            "free space there, or name another place: `export WINDLASS_HOME=DIRECTORY`",
        ) from None
    return Started(plan, directory, home, environ)


def reopened(run: str, home: str, environ: Mapping[str, str]) -> Started:
    """A run that has ended or was lost, to go on where it stood."""
    directory = str(Store(home).find(run))
    name = os.path.basename(directory)
    if lock.holder(directory):
        raise WindlassError(f"{name} is still running", f"watch it: windlass attach {name}")
    events = journal.read(directory)
    if events and events[-1]["ev"] == "run.ended" and events[-1].get("state") == "succeeded":
        raise WindlassError(f"{name} has succeeded; there is nothing to resume", f"see windlass status {name}")
    try:
        with open(os.path.join(directory, layout.PLAN)) as file:
            plan = plans.from_json(file.read())
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise WindlassError(f"the plan of {name} cannot be read: {error}", "run the job file again") from None
    engine.check(plan, environ)
    return Started(plan, directory, home, environ, len(events))


def _drive_alone(run: Started) -> None:
    """In a fork: off the terminal, into a session of its own."""
    code = 1
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        log = os.open(os.path.join(run.directory, layout.DRIVER_LOG), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        for fd, target in ((null, 0), (null, 1), (log, 2)):
            os.dup2(fd, target)
        code = run.drive()
    finally:
        os._exit(code)
