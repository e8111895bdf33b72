"""The local engine: runs are directories below the home directory, ranks are processes of this machine.

A new run has its directory and plan before anything runs; `attend` drives it in this process, `detach` in a separate
one. Only the driver changes a resumed run, once it holds the run's lock: several processes may try to resume it, and
only one succeeds.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longboat.engines import resume_policy
from longboat.engines.directory_run import DirectoryRun
from longboat.engines.interface import (
    Diagnosis,
    Endpoint,
    EndpointRequest,
    EngineContext,
    Removal,
    Resumption,
    RunHandle,
    RunList,
    RunRequest,
    Say,
    StopOutcome,
    Viewer,
    silent,
)
from longboat.engines.local import driver_orders, driving
from longboat.engines.local.driver_orders import DriverOrders
from longboat.runs import stage_reuse
from longboat.runs.stage_reuse import StageDecision
from longboat.runs.store import Store, alive
from longboat.runtime import atomic_file, driver_lock, journal, run_layout
from longboat.runtime import plan as plans
from longboat.runtime.agent import syscalls
from longboat.runtime.driver.checkpoints import read_manifest
from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import dataclass
from longboat.runtime.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from longboat.runs.run_state import RankState, StageState
    from longboat.spec.fingerprint import Fingerprint

KILLED_WITHIN = 30.0
"""Seconds that `rm --force` waits for the driver to exit."""


@dataclass(frozen=True)
class PendingStart:
    """A run that was prepared and is not driven yet."""

    plan: Plan
    events: int = 0
    """Events already in its journal; 0 for a new run."""
    orders: DriverOrders | None = None
    """Orders of a resumed run, which its driver writes; those of a new run are in its directory already."""


class LocalRun(DirectoryRun):
    engine = "local"

    def __init__(self, directory: Path, context: EngineContext, pending: PendingStart | None = None) -> None:
        super().__init__(directory)
        self._context = context
        self._pending = pending
        self.after = pending.events if pending is not None else 0

    # Starting.

    def attend(self, viewer: Viewer, say: Say) -> int:
        code = self.drive(say, lambda: viewer.open(self._record))
        viewer.wait()
        return code

    def drive(self, say: Say = silent, begun: Callable[[], None] = lambda: None) -> int:
        """Drives the run in this process to its end and returns the exit code."""
        plan, directory = self._start().plan, str(self.directory)
        return driving.drive(plan, directory, self._context.home, self._context.environ, self._settle, say, begun)

    def _start(self) -> PendingStart:
        assert self._pending is not None, "this run was not prepared to start"
        return self._pending

    def _settle(self) -> None:
        """Writes the plan and orders of a resumed run, unless another process resumed it in the meantime."""
        pending, directory = self._start(), str(self.directory)
        if pending.orders is None:
            return
        if sum(1 for _ in journal.stream(directory)) != pending.events:
            raise resume_policy.taken(self.id)
        try:
            _write_plan(directory, pending.plan)
            driver_orders.write(directory, pending.orders)
        except OSError as error:
            raise LongboatError(
                f"cannot resume {self.id}: cannot write its plan: {error.strerror}",
                f"free space in {directory}, or make it writable",
            ) from None

    def _record(self) -> None:
        """Records provenance and fingerprints. That takes longer than a start, so it runs next to the run."""
        from longboat.engines.local import provenance

        provenance.write(self._start().plan, str(self.directory))
        _record_fingerprints(str(self.directory), self._start())

    def detach(self, fork: bool = False) -> bool:
        begins = self._fork() if fork else self._spawn()
        if begins:
            self._record()
        return begins

    def _fork(self) -> bool:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = syscalls.fork(self._drive_alone)
        return self._begins(pid, lambda: bool(os.waitpid(pid, os.WNOHANG)[0]))

    def _spawn(self) -> bool:
        """Starts the driver in a new interpreter: a notebook has threads and must not be forked."""
        import subprocess

        pending = self._start()
        arguments = [str(self.directory), str(pending.events)]
        arguments += [driver_orders.to_json(pending.orders)] if pending.orders is not None else []
        with open(self.directory / run_layout.DRIVER_LOG, "ab") as log:
            command = [sys.executable, "-m", "longboat.engines.local", *arguments]
            driver = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        return self._begins(driver.pid, lambda: driver.poll() is not None)

    def _begins(self, pid: int, ended: Callable[[], bool]) -> bool:
        """Waits until the process drives the run; False if it exits before. Raises if another process was faster."""
        while True:
            over = ended()
            events = journal.read(str(self.directory))[self.after :]
            drivers = [event.get("pid") for event in events if event["ev"] == "run.started"]
            if pid in drivers:
                return True
            if over and drivers:
                raise resume_policy.taken(self.id)
            if over:
                return bool(events)
            time.sleep(0.005)

    def _drive_alone(self) -> int:
        """Drives the run in a forked child, detached from the terminal, in a new session."""
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        log = os.open(self.directory / run_layout.DRIVER_LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        for fd, target in ((null, 0), (null, 1), (log, 2)):
            os.dup2(fd, target)
        return self.drive()

    # An existing run.

    def stop(self, by: str, now: bool = False, wait: float | None = None) -> StopOutcome:
        directory = str(self.directory)
        if not driving.driven(directory):
            return StopOutcome.NOT_RUNNING
        stopped = driving.stop(directory, by, now, wait)
        if wait is None:
            return StopOutcome.ASKED
        return StopOutcome.ENDED if stopped or not driving.driven(directory) else StopOutcome.LATE

    def remove(self, force: bool = False, data: bool = False) -> Removal:
        from longboat.runs.formatting import size as size_text
        from longboat.runs.store import tree_size

        if force and alive(self.directory):
            driving.stop(str(self.directory), by="longboat rm --force", now=True, wait=KILLED_WITHIN)
        size = tree_size(self.directory)
        Store(self._context.home).remove(self.directory)
        return Removal(f" ({size_text(size)})", {"bytes": size})

    def exec(self, rank: RankState, command: Sequence[str], environ: Mapping[str, str]) -> int:
        from longboat.engines.local import rank_exec

        return rank_exec.execute(rank.pid, command or [environ.get("SHELL") or "/bin/sh"])

    @contextlib.contextmanager
    def endpoint(self, request: EndpointRequest, say: Say) -> Iterator[Endpoint]:
        from longboat.engines.serving_wait import await_serving

        if request.board:
            raise LongboatError(f"{self.id} runs on this machine", f"use: longboat board {self.id}")
        stage = await_serving(self, request, 0.2)
        assert stage is not None
        keys = ("url", "grpc", "page", "model")
        yield Endpoint({key: stage.serving[key] for key in keys if key in stage.serving})

    def served_at(self, stage: StageState) -> tuple[Mapping[str, Any], str]:
        return stage.serving, ""


class LocalEngine:
    name = "local"
    remote = False

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._store = Store(context.home)

    def submit(self, request: RunRequest, say: Say) -> tuple[LocalRun, Sequence[StageDecision]]:
        """Creates a run of the plan, after checking that this machine has what it needs."""
        plan, choice = request.plan, request.choice
        assert plan is not None
        driving.check(plan, self._context.environ)
        decisions: tuple[StageDecision, ...] = ()
        if choice.first or choice.only:
            decisions = stage_reuse.decide(plan, (), {}, choice.first, choice.only)
        run = self._store.create(plan.name)
        directory = str(run)
        try:
            _write_plan(directory, plan)
            if decisions or choice.keep:
                left_out = tuple(each.stage for each in decisions if each.does == stage_reuse.LEFT_OUT)
                driver_orders.write(directory, DriverOrders((), left_out, choice.keep))
            os.close(driver_lock.take(directory))
        except LongboatError:  # the file system has no locks
            os.unlink(os.path.join(directory, run_layout.LOCK))
            self._store.remove(run)
            raise
        except OSError as error:
            self._store.remove(run)
            raise LongboatError(
                f"cannot create a run in {self._store.root}: {error.strerror}",
                "free space there, or use another directory: `export LONGBOAT_HOME=DIRECTORY`",
            ) from None
        return LocalRun(run, self._context, PendingStart(plan)), decisions

    def resumption(self, run: RunHandle, request: RunRequest) -> Resumption:
        from longboat.spec import fingerprint

        directory = str(run.directory)
        if driver_lock.holder(directory):
            raise LongboatError(f"{run.id} is still running", f"watch it: longboat attach {run.id}")
        recorded_plan = _plan_of(directory) if request.plan is None else None
        plan = request.plan or recorded_plan
        assert plan is not None
        current = fingerprint.fingerprints(plan)
        return resume_policy.decide(
            run.id, request, recorded_plan, journal.stream(directory), _recorded(directory), current
        )

    def resume(self, run: RunHandle, request: RunRequest, say: Say) -> tuple[LocalRun, Sequence[StageDecision]]:
        """Prepares a resumed run; nothing is written before its driver holds the lock."""
        resumption = self.resumption(run, request)
        resume_policy.check_something_runs(run.id, resumption)
        driving.check(resumption.plan, self._context.environ)
        again = resume_policy.run_again(resumption)
        for stage in resume_policy.stages(resumption, stage_reuse.RUNS):
            if stage not in again:
                with contextlib.suppress(ValueError):  # the driver makes a new one
                    read_manifest(str(run.directory / run_layout.manifest(stage)))
        orders = DriverOrders(
            again,
            resume_policy.stages(resumption, stage_reuse.LEFT_OUT),
            request.choice.keep,
        )
        pending = PendingStart(resumption.plan, resumption.events, orders)
        return LocalRun(run.directory, self._context, pending), resumption.decisions

    def find(self, text: str | None) -> LocalRun:
        return self.open(self._store.find(text))

    def open(self, directory: Path) -> LocalRun:
        return LocalRun(directory, self._context)

    def runs(self, most: int = 0) -> RunList:
        from longboat.runs.journal_fold import load_or_unreadable

        ids = self._store.ids()
        states = [load_or_unreadable(self._store.root / name) for name in (ids[:most] if most else ids)]
        return RunList(f"in {self._store.root}", states, len(ids))

    def warnings(self, plan: Plan) -> Sequence[str]:
        return ()

    def doctor(self, plan: Plan | None, probe: bool) -> Diagnosis:
        from longboat.engines import doctor

        machine = doctor.of_machine(self._context.home, self._context.environ)
        job = [] if plan is None else doctor.of_job(plan, self._context.environ)
        # Without a home there is no run at all; the rest of the machine matters only to a job that needs it.
        needed = [finding for finding in machine if finding.about == "home"] + job
        return Diagnosis("THIS MACHINE", machine, job, plan is None or all(f.state != doctor.MISSING for f in needed))


def _write_plan(directory: str, plan: Plan) -> None:
    atomic_file.write(os.path.join(directory, run_layout.PLAN), plans.to_json(plan))


def _plan_of(directory: str) -> Plan:
    try:
        with open(os.path.join(directory, run_layout.PLAN), encoding="utf-8") as file:
            return plans.from_json(file.read())
    except (OSError, ValueError, TypeError, AttributeError) as error:
        name = os.path.basename(directory)
        raise LongboatError(f"cannot read the plan of {name}: {error}", "run the job file again") from None


def _recorded(directory: str) -> dict[str, Fingerprint]:
    from longboat.spec import fingerprint

    try:
        with open(os.path.join(directory, run_layout.FINGERPRINTS), encoding="utf-8") as file:
            return fingerprint.from_json(file.read())
    except OSError:
        return {}


def _record_fingerprints(directory: str, started: PendingStart) -> None:
    """Records fingerprints of the stages that run this time; reused stages keep theirs."""
    from longboat.runtime.driver.history import look_back
    from longboat.spec import fingerprint

    path = os.path.join(directory, run_layout.FINGERPRINTS)
    before = _recorded(directory)
    passed = look_back(journal.read(directory)[: started.events]).passed
    kept = set(passed) - set(driver_orders.read(directory).again)
    fingerprints = fingerprint.fingerprints(started.plan)
    fingerprints.update((name, before[name]) for name in kept if name in before)
    with contextlib.suppress(OSError):
        atomic_file.write(path, fingerprint.to_json(fingerprints))
