"""The box seen from outside: start it, ask its keeper, end it."""

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.errors import ClusterError
from tests.cluster.places import CHECKOUT, Places, home

_DEADLINE = 120.0


@dataclass(frozen=True)
class Box:
    """The processes, mounts and networks of one cluster. All of them end with its first process."""

    places: Places

    def lives(self) -> bool:
        """Whether any process of it is left that holds the box's lock."""
        try:
            with open(self.places.box_lock, "r+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def pid(self) -> int:
        """Of its first process, as the machine counts; 0 if there is none."""
        if not self.lives():
            return 0
        # The lock is held from before the process starts; its number follows at once.
        path = self.places.root / "box.pid"
        _until(lambda: path.exists() or not self.lives(), "the box's first process")
        return int(path.read_text()) if path.exists() else 0

    def start(self) -> None:
        """From here on, whatever happens, one kill ends all."""
        self.places.logs.mkdir(parents=True, exist_ok=True)
        for stale in ("box.pid", "box.sock", "box.sock.new"):
            (self.places.root / stale).unlink(missing_ok=True)
        with open(self.places.box_lock, "w") as lock, open(self.places.logs / "box.log", "ab") as log:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            command = ["unshare", "--mount", "--net", "--pid", "--fork", sys.executable, "-m", "tests.cluster.keeper"]
            subprocess.Popen(
                [*command, str(self.places.root), str(lock.fileno()), str(home())],
                cwd=CHECKOUT,
                env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(lock.fileno(),),
                start_new_session=True,
            )
        _until(lambda: (self.places.root / "box.sock").exists() or not self.lives(), "the box")
        if not self.lives():
            raise ClusterError(
                f"the box did not start: {(self.places.logs / 'box.log').read_text().strip()[-500:]}",
                "namespaces must be allowed to root here: unshare --mount --net --pid --fork true",
            )

    def end(self) -> None:
        """Kill it; returns when every process of it is gone."""
        pid = self.pid()
        if pid:
            with contextlib.suppress(ProcessLookupError):  # it was killed before, and who started it has yet to end
                os.kill(pid, signal.SIGKILL)
            _until(lambda: not self.lives() and not os.path.exists(f"/proc/{pid}"), "the end of the box")

    def spawn(self, name: str, argv: list[str], env: dict[str, str] | None = None) -> None:
        """Start a program that stays; its output goes to the log of its name."""
        self._ask(do="spawn", name=name, argv=argv, env=env or dict(os.environ), log=str(self._log(name)))

    def run(self, *argv: str, env: dict[str, str] | None = None, timeout: float = 120.0) -> str:
        """What a program prints that ends by itself; an error if it ends badly."""
        name = f"run-{os.getpid()}-{threading.get_ident()}-{time.monotonic_ns()}"
        log = self._log(name)
        try:
            self.spawn(name, list(argv), env)
            status = self.wait(name, timeout)
            output = log.read_text(errors="replace")
        finally:
            log.unlink(missing_ok=True)
        if status != 0:
            raise ClusterError(f"{' '.join(argv)} ended with {status}: {output.strip()[-800:]}")
        return output

    def wait(self, name: str, timeout: float = 0.0) -> int | None:
        """A program's exit status; None while it runs."""
        status = self._ask(do="wait", name=name, timeout=timeout)["status"]
        return None if status is None else int(status)

    def stop(self, name: str, number: int = signal.SIGTERM, grace: float = 10.0) -> None:
        """End one program, at the latest after the grace."""
        self._ask(do="send", name=name, number=int(number))
        if self.wait(name, grace) is None and name in self.programs():
            self._ask(do="send", name=name, number=int(signal.SIGKILL))
            self.wait(name, grace)

    def programs(self) -> dict[str, int | None]:
        """Every program that was started, and its exit status; None for those that run."""
        listed = self._ask(do="programs")["programs"]
        return {name: about["status"] for name, about in listed.items() if not name.startswith("run-")}

    def _log(self, name: str) -> Path:
        return self.places.logs / f"{name}.log"

    def _ask(self, **request: Any) -> dict[str, Any]:
        here = os.open(self.places.root, os.O_PATH)
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(f"/proc/self/fd/{here}/box.sock")
                connection.sendall(json.dumps(request).encode() + b"\n")
                with connection.makefile("rb") as stream:
                    reply = json.loads(stream.readline() or b'{"error": "the box is gone"}')
        except (FileNotFoundError, ConnectionError):
            raise ClusterError(f"the cluster {self.places.name} is not up", "make cluster-up") from None
        finally:
            os.close(here)
        if "error" in reply:
            raise ClusterError(reply["error"])
        return dict(reply)


def _until(true: Any, what: str) -> None:
    deadline = time.monotonic() + _DEADLINE
    while not true():
        if time.monotonic() > deadline:
            raise ClusterError(f"{what} did not come within {_DEADLINE:.0f} s")
        time.sleep(0.01)
