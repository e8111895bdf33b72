"""A third engine, as somebody else would write it: registered by entry point, with agents that outlive their driver.

Each agent is the zipapp in a process of its own, over TCP, as in a cluster.

    python far_engine.py RUN_DIR PORT LEASE PYTHON

drives the run in RUN_DIR. Started again after it was killed, it takes over from its predecessor. An agent is found
again by its pid file; one that is gone is started anew, and reported as lost only when it is dead. `exec` and `doctor`
are not supported.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from longboat import zipapp
from longboat.engines import resume_policy
from longboat.engines.directory_run import DirectoryRun
from longboat.engines.interface import (
    EngineContext,
    Removal,
    Resumption,
    RunHandle,
    RunList,
    RunRequest,
    Say,
    StopOutcome,
    Viewer,
)
from longboat.runs.journal_fold import load, plan_of
from longboat.runs.stage_reuse import StageDecision
from longboat.runs.store import Store
from longboat.runtime import driver_lock, journal, plan, run_layout
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.driver.driver import Driver, DriverOptions
from longboat.runtime.driver.history import look_back
from longboat.runtime.driver.launcher import AgentGone
from longboat.runtime.errors import LongboatError
from longboat.runtime.seat import Seat

LEASE = 30.0


class FarRun(DirectoryRun):
    engine = "far"
    outlives_cli = True

    def detach(self, fork: bool = False) -> bool:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, __file__, str(self.directory), str(port), str(LEASE), sys.executable]
        with open(self.directory / run_layout.DRIVER_LOG, "ab") as log:
            driver = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        while len(journal.read(str(self.directory))) <= self.after:
            if driver.poll() is not None:
                return False
            time.sleep(0.02)
        return True

    def attend(self, viewer: Viewer, say: Say) -> int:
        return viewer.show(lambda: None if self.detach() else say(f"{self.id} did not start"))

    def stop(self, by: str, now: bool = False, wait: float | None = None) -> StopOutcome:
        pid = driver_lock.holder(str(self.directory))
        if not pid:
            return StopOutcome.NOT_RUNNING
        (self.directory / run_layout.STOP).write_text(by)
        os.kill(pid, signal.SIGQUIT if now else signal.SIGTERM)
        due = time.monotonic() + (wait or 0.0)
        while wait is not None and driver_lock.holder(str(self.directory)) == pid:
            if time.monotonic() > due:
                return StopOutcome.LATE
            time.sleep(0.02)
        return StopOutcome.ASKED if wait is None else StopOutcome.ENDED

    def remove(self, force: bool = False, data: bool = False) -> Removal:
        if force:
            self.stop("rm --force", now=True, wait=30.0)
        Store(self.directory.parent.parent).remove(self.directory)
        return Removal()


class FarEngine:
    name = "far"
    remote = False

    def __init__(self, context: EngineContext) -> None:
        self._store = Store(context.home)

    def submit(self, request: RunRequest, say: Say) -> tuple[FarRun, Sequence[StageDecision]]:
        assert request.plan is not None
        directory = self._store.create(request.plan.name)
        (directory / run_layout.PLAN).write_text(plan.to_json(request.plan))
        return FarRun(directory), ()

    def resumption(self, run: RunHandle, request: RunRequest) -> Resumption:
        if driver_lock.holder(str(run.directory)):
            raise LongboatError(f"{run.id} is still running")
        return resume_policy.decide(run.id, request, plan_of(run.directory), run.events(), {}, None)

    def resume(self, run: RunHandle, request: RunRequest, say: Say) -> tuple[FarRun, Sequence[StageDecision]]:
        resumption = self.resumption(run, request)
        resume_policy.check_something_runs(run.id, resumption)
        resumed = FarRun(run.directory)
        resumed.after = resumption.events
        return resumed, resumption.decisions

    def find(self, text: str | None) -> FarRun:
        return self.open(self._store.find(text))

    def open(self, directory: Path) -> FarRun:
        return FarRun(directory)

    def runs(self, most: int = 0) -> RunList:
        ids = self._store.ids()
        return RunList("far away", [load(self._store.root / name) for name in ids[: most or None]], len(ids))

    def warnings(self, plan: plan.Plan) -> Sequence[str]:
        return ()


class FarLauncher:
    def __init__(self, run: Path, port: int, lease: float, python: str) -> None:
        self._run, self._port, self._lease, self._python = run, port, lease, python
        self._ours, self._theirs = socket.socketpair()
        self._gone: list[AgentGone] = []
        self._known: dict[Seat, int] = {}
        self._all: set[int] = set()
        for file in (run / "agents").glob("*"):
            stage, role, rank = file.name.split("+")
            self._watch(Seat(stage, role, int(rank)), int(file.read_text()))

    def launch(self, seat: Seat, ports: object) -> None:
        if seat in self._known and Path(f"/proc/{self._known[seat]}").exists():
            return
        env = {
            **os.environ,
            "TMPDIR": str(self._run),
            "LONGBOAT_AGENT_SEAT": seat.name,
            "LONGBOAT_AGENT_RUN": self._run.name,
            "LONGBOAT_AGENT_DIRECTORY": str(self._run),
            "LONGBOAT_AGENT_DRIVER": f"localhost:{self._port}",
            "LONGBOAT_AGENT_TOKEN_FILE": str(self._run / "token"),
            "LONGBOAT_AGENT_LEASE": str(self._lease),
            "LONGBOAT_AGENT_TERMINATION": str(self._run / f"last-{seat.rank_name}"),
        }
        with open(self._run / "agents.log", "ab") as log:
            command = [self._python, str(self._run / "longboat.pyz")]
            agent = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
        (self._run / "agents" / "+".join(map(str, seat))).write_text(str(agent.pid))
        self._watch(seat, agent.pid)

    def fence(self, seat: Seat) -> None:
        os.kill(self._known[seat], signal.SIGKILL)

    def release(self, seat: Seat) -> None:
        self._known.pop(seat, None)

    def is_current(self, seat: Seat, agent: str) -> bool:
        return True

    def fileno(self) -> int:
        return self._ours.fileno()

    def poll(self) -> list[AgentGone]:
        self._ours.recv(4096)
        found, self._gone = self._gone, []
        return found

    def close(self) -> None:
        due = time.monotonic() + 20
        while any(_alive(pid) for pid in self._all) and time.monotonic() < due:
            time.sleep(0.02)

    def _watch(self, seat: Seat, pid: int) -> None:
        self._known[seat] = pid
        self._all.add(pid)

        def wait() -> None:
            while _alive(pid):
                time.sleep(0.05)
            if self._known.get(seat) == pid:
                self._gone.append(AgentGone(seat, Cause(CauseKind.AGENT_LOST, "the agent is gone")))
                self._theirs.send(b"x")

        threading.Thread(target=wait, daemon=True).start()


def _alive(pid: int) -> bool:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def main(run: Path, port: int, lease: float, python: str) -> int:
    driver_lock.take(str(run))
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)
    (run / "agents").mkdir(exist_ok=True)
    if not (run / "longboat.pyz").exists():
        (run / "token").write_text(os.urandom(16).hex())
        (run / "longboat.pyz").write_bytes(zipapp.build())
    events = journal.read(str(run))
    recover = bool(events) and events[-1]["ev"] != "run.ended"
    for file in () if recover else (run / "agents").glob("*"):
        file.unlink()  # of an earlier part that has ended
    writer = journal.JournalWriter(str(run))
    writer.write(
        "run.started",
        run=run.name,
        name=run.name.rpartition("-")[0],
        pid=os.getpid(),
        engine="far",
        resumed=bool(events) or None,
    )
    value = plan.from_json((run / "plan.json").read_text())
    token = (run / "token").read_bytes()
    driver = Driver(value, str(run), writer, token, look_back(events), DriverOptions(recover=recover))
    return driver.run(listener, FarLauncher(run, port, lease, python))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]))
