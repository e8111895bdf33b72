"""An engine whose agents outlive their driver, as on a cluster: each is the zipapp, in a process of its own, over TCP.

    python far_engine.py RUN_DIR PORT LEASE [PYTHON]

Drives the run in RUN_DIR; started again after it was killed, it takes over from where its predecessor was. An agent is
found again by its pid file; one that is gone is started anew, and told to the driver as lost only when it is dead.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from longboat import zipapp
from longboat.runtime import journal, plan
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.driver.agent_links import Seat, name_of
from longboat.runtime.driver.driver import Driver
from longboat.runtime.driver.history import look_back
from longboat.runtime.driver.launcher import AgentGone


class FarLauncher:
    def __init__(self, run: Path, port: int, lease: float, python: str) -> None:
        self._run, self._port, self._lease, self._python = run, port, lease, python
        self._ours, self._theirs = socket.socketpair()
        self._gone: list[AgentGone] = []
        self._known: dict[Seat, int] = {}
        self._all: set[int] = set()
        for file in (run / "agents").glob("*"):
            stage, role, rank = file.name.split("+")
            self._watch((stage, role, int(rank)), int(file.read_text()))

    def launch(self, seat: Seat, ports: object) -> None:
        if seat in self._known and Path(f"/proc/{self._known[seat]}").exists():
            return
        env = {
            **os.environ,
            "TMPDIR": str(self._run),
            "LONGBOAT_AGENT_SEAT": name_of(seat),
            "LONGBOAT_AGENT_RUN": self._run.name,
            "LONGBOAT_AGENT_DIRECTORY": str(self._run),
            "LONGBOAT_AGENT_DRIVER": f"localhost:{self._port}",
            "LONGBOAT_AGENT_TOKEN_FILE": str(self._run / "token"),
            "LONGBOAT_AGENT_LEASE": str(self._lease),
            "LONGBOAT_AGENT_TERMINATION": str(self._run / f"last-{seat[1]}-{seat[2]}"),
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
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)
    (run / "agents").mkdir(exist_ok=True)
    if not (run / "longboat.pyz").exists():
        (run / "token").write_text(os.urandom(16).hex())
        (run / "longboat.pyz").write_bytes(zipapp.build())
    events = journal.read(str(run))
    writer = journal.JournalWriter(str(run))
    writer.write("run.started", run=run.name, name="far", pid=os.getpid(), engine="far", resumed=bool(events) or None)
    value = plan.from_json((run / "plan.json").read_text())
    token = (run / "token").read_bytes()
    driver = Driver(value, run.name, str(run), writer, token, look_back(events), recover=bool(events))
    return driver.run(listener, FarLauncher(run, port, lease, python))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]))
