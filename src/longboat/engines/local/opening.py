"""Begins runs on this machine: from a plan, or from a run that is to go on.

A `Started` run has its directory; nothing runs yet. Drive it in this process, or let a process of its own
drive it. A new one has its plan on disk. One that goes on is changed by its driver alone, once that holds the
run's lock: several may want to go on with it, and only one will.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from longboat.engines.local import driver_orders, driving
from longboat.engines.local.driver_orders import DriverOrders
from longboat.runs import stage_reuse
from longboat.runs.store import Store
from longboat.runtime import driver_lock, journal, run_layout
from longboat.runtime import plan as plans
from longboat.runtime.agent import syscalls
from longboat.runtime.driver.history import look_back
from longboat.runtime.errors import LongboatError
from longboat.runtime.plan import Plan

if TYPE_CHECKING:
    from longboat.spec.fingerprint import Fingerprint


@dataclass(frozen=True)
class OpenedRun:
    plan: Plan
    directory: str
    home: str
    environ: Mapping[str, str]
    events: int = 0
    """How many the journal held before: the run is resumed when there are any."""
    fates: tuple[stage_reuse.StageDecision, ...] = ()
    """Of its stages, when it goes on or was asked for in part."""
    orders: DriverOrders | None = None
    """What its driver is to be told, of a run that goes on; None: that stands in its directory."""

    @property
    def id(self) -> str:
        return os.path.basename(self.directory)

    def drive(self, begun: Callable[[], None] | None = None, say: Callable[[str], None] | None = None) -> int:
        """Runs it in this process to its end; the exit code."""
        return driving.drive(self.plan, self.directory, self.home, self.environ, begun, say, self._settle)

    def _settle(self) -> None:
        """Writes down how the run goes on, unless somebody else went on with it since that was decided."""
        if self.orders is None:
            return
        if sum(1 for _ in journal.stream(self.directory)) != self.events:
            raise _taken(self.id)
        try:
            _write_plan(self.directory, self.plan)
            driver_orders.write(self.directory, self.orders)
        except OSError as error:
            raise LongboatError(
                f"{self.id} cannot go on: its plan cannot be written: {error.strerror}",
                f"free space in {self.directory}, or make it writable",
            ) from None

    def remember(self) -> None:
        """Where it came from and what its stages depend on. Takes longer than a start, so it is done beside the run."""
        from longboat.engines.local import provenance

        provenance.write(self.plan, self.directory)
        record_fingerprints(self)

    def detach(self) -> bool:
        """Lets a process of its own drive it; True once that has begun. Call it from a process
        with one thread."""
        sys.stdout.flush()
        sys.stderr.flush()
        pid = syscalls.fork(lambda: _drive_alone(self))
        if not begins(self, pid, lambda: bool(os.waitpid(pid, os.WNOHANG)[0])):
            return False
        self.remember()
        return True


def begins(run: OpenedRun, pid: int, ended: Callable[[], bool]) -> bool:
    """Waits until the process drives the run; False when it has ended and left no word. Raises when another process
    was faster."""
    while True:
        over = ended()
        events = journal.read(run.directory)[run.events :]
        drivers = [event.get("pid") for event in events if event["ev"] == "run.started"]
        if pid in drivers:
            return True
        if over and drivers:
            raise _taken(run.id)
        if over:
            return bool(events)
        time.sleep(0.005)


def _taken(run: str) -> LongboatError:
    return LongboatError(f"somebody else has just resumed {run}", f"watch it: longboat attach {run}")


@dataclass(frozen=True)
class StageChoice:
    """How much of a run is asked for."""

    first: str | None = None
    """--from: run this stage and all that come after it."""
    only: str | None = None
    keep: bool = False
    """Servers go on when all else is done."""


ALL = StageChoice()


def opened(plan: Plan, home: str, environ: Mapping[str, str], wish: StageChoice = ALL) -> OpenedRun:
    """A new run of the plan. What the machine lacks is found before anything is created."""
    driving.check(plan, environ)
    fates = stage_reuse.decide(plan, (), {}, wish.first, wish.only) if wish.first or wish.only else ()
    store = Store(home)
    run = store.create(plan.name)
    directory = str(run)
    try:
        _write_plan(directory, plan)
        if fates or wish.keep:
            driver_orders.write(directory, _orders(fates, (), wish))
        os.close(driver_lock.take(directory))
    except LongboatError:  # no locks there
        os.unlink(os.path.join(directory, run_layout.LOCK))
        store.remove(run)
        raise
    except OSError as error:
        store.remove(run)
        raise LongboatError(
            f"a run cannot be kept in {store.root}: {error.strerror}",
            "free space there, or name another place: `export LONGBOAT_HOME=DIRECTORY`",
        ) from None
    return OpenedRun(plan, directory, home, environ, fates=fates)


def reopened(
    run: str, home: str, environ: Mapping[str, str], wish: StageChoice = ALL, plan: Plan | None = None
) -> OpenedRun:
    """A run that has ended or was lost, to go on where it stood: with its own plan, or with a new one of the same
    job. What has passed is reused unless what it depends on has changed. Nothing is written yet."""
    started = resumed_plan(run, home, environ, wish, plan)
    again = [fate.stage for fate in started.fates if fate.does == stage_reuse.RUNS]
    passed = look_back(journal.stream(started.directory)).passed
    if passed and not again:
        raise LongboatError(
            f"{started.id} has succeeded and nothing has changed since; there is nothing to resume",
            f"see longboat status {started.id}, or run a stage again: --resume {started.id} --from STAGE",
        )
    driving.check(started.plan, environ)
    return replace(started, orders=_orders(started.fates, passed, wish))


def _write_plan(directory: str, plan: Plan) -> None:
    path = os.path.join(directory, run_layout.PLAN)
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(plans.to_json(plan))
    os.replace(path + ".new", path)


def resumed_plan(
    run: str, home: str, environ: Mapping[str, str], wish: StageChoice = ALL, plan: Plan | None = None
) -> OpenedRun:
    """What `reopened` would run; nothing is written."""
    directory = str(Store(home).find(run))
    name = os.path.basename(directory)
    if driver_lock.holder(directory):
        raise LongboatError(f"{name} is still running", f"watch it: longboat attach {name}")
    events = journal.read(directory)
    if plan is not None and not name.startswith(plan.name + "-"):
        raise LongboatError(f"{name} is no run of the job {plan.name}", f"its runs: longboat status {plan.name}")
    plan = plan or _plan_of(directory)
    before = look_back(events)
    from longboat.spec import fingerprint

    recorded, current = _fingerprints_of(directory), fingerprint.fingerprints(plan)
    known = [stage for stage in before.passed if stage in recorded and stage in current]
    changes = {stage: recorded[stage].changed(current[stage]) for stage in known}
    fates = stage_reuse.decide(plan, before.passed, changes, wish.first, wish.only)
    return OpenedRun(plan, directory, home, environ, len(events), fates)


def record_fingerprints(run: OpenedRun) -> None:
    """What the stages depend on that run this time; those that are reused keep what they were run with."""
    from longboat.spec import fingerprint

    path = os.path.join(run.directory, run_layout.FINGERPRINTS)
    recorded = _fingerprints_of(run.directory)
    passed = look_back(journal.read(run.directory)[: run.events]).passed
    kept = set(passed) - set(driver_orders.read(run.directory).again)
    found = fingerprint.fingerprints(run.plan)
    found.update((name, recorded[name]) for name in kept if name in recorded)
    with contextlib.suppress(OSError):
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(fingerprint.to_json(found))
        os.replace(path + ".new", path)


def _fingerprints_of(directory: str) -> dict[str, Fingerprint]:
    from longboat.spec import fingerprint

    try:
        with open(os.path.join(directory, run_layout.FINGERPRINTS), encoding="utf-8") as file:
            return fingerprint.from_json(file.read())
    except OSError:
        return {}


def _plan_of(directory: str) -> Plan:
    try:
        with open(os.path.join(directory, run_layout.PLAN), encoding="utf-8") as file:
            return plans.from_json(file.read())
    except (OSError, ValueError, TypeError, AttributeError) as error:
        name = os.path.basename(directory)
        raise LongboatError(f"the plan of {name} cannot be read: {error}", "run the job file again") from None


def _orders(fates: tuple[stage_reuse.StageDecision, ...], passed: Collection[str], wish: StageChoice) -> DriverOrders:
    again = tuple(fate.stage for fate in fates if fate.does == stage_reuse.RUNS and fate.stage in passed)
    return DriverOrders(again, tuple(fate.stage for fate in fates if fate.does == stage_reuse.LEFT_OUT), wish.keep)


def _drive_alone(run: OpenedRun) -> int:
    """In a fork: off the terminal, into a session of its own."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(os.path.join(run.directory, run_layout.DRIVER_LOG), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for fd, target in ((null, 0), (null, 1), (log, 2)):
        os.dup2(fd, target)
    return run.drive()
