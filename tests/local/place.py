"""A place of a test's own for real runs: a home, a directory of code, the command line as a process.

Every process that is started from here carries a mark in its environment, so that what a run
leaves behind can be found among all the processes of the machine, whatever else runs there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from longboat.runtime import journal, run_layout
from tests.commands import Said

MARK = "TEST_OF_LONGBOAT"
PATIENCE = 180.0
"""Seconds after which something that must happen is said not to happen."""

T = TypeVar("T")


def until(found: Callable[[], T], what: str = "it", seconds: float = PATIENCE) -> T:
    """Waits until the function gives something; fails when it never does."""
    due = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < due, f"{what} did not happen within {seconds:g} s"
        time.sleep(0.01)
    return value


class Command:
    """A `longboat ...` under way, in a session of its own."""

    def __init__(self, argv: list[str], env: dict[str, str], cwd: Path) -> None:
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        self.argv = argv
        self.process = subprocess.Popen(
            argv,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def err(self) -> str:
        return self._read(self._err)

    @property
    def out(self) -> str:
        return self._read(self._out)

    def signal(self, number: int) -> None:
        """To its whole process group, as a terminal does."""
        os.killpg(self.pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def said(self, timeout: float = PATIENCE) -> Said:
        """Its exit code and output, once it has ended."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self.process.wait()
            raise AssertionError(f"{self.argv} still ran after {timeout:g} s\n{self.out}\n{self.err}") from None
        return Said(code, self.out, self.err)

    @staticmethod
    def _read(file: Any) -> str:
        file.seek(0)
        return str(file.read().decode("utf-8", "surrogateescape"))


class Place:
    def __init__(self, directory: Path) -> None:
        self.home = directory / "home"
        self.code = directory / "code"
        self.tmp = Path(tempfile.mkdtemp(prefix="lb-"))
        self.mark = uuid.uuid4().hex
        self.python = [sys.executable]
        self._begun: list[Command] = []
        self.code.mkdir()

    @property
    def env(self) -> dict[str, str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith(("LONGBOAT", "PYTEST", "OMP_"))}
        env.update({"LONGBOAT_HOME": str(self.home), "TMPDIR": str(self.tmp), MARK: self.mark, "NO_COLOR": "1"})
        return env

    def file(self, name: str, text: str) -> Path:
        """Appears with all its text at once: a rank may be waiting for it."""
        path = self.code / name
        new = path.with_name(f"{path.name}.new")
        new.write_text(textwrap.dedent(text))
        os.replace(new, path)
        return path

    def job(self, text: str, name: str = "demo", **scripts: str) -> Path:
        """Writes a job file and the Python scripts beside it: `train="..."` becomes train.py."""
        for script, body in scripts.items():
            self.file(f"{script}.py", body)
        return self.file("job.yaml", f"name: {name}\n" + textwrap.dedent(text))

    def begin(self, *argv: str | os.PathLike[str], env: dict[str, str] | None = None) -> Command:
        words = [*self.python, "-m", "longboat", *(os.fspath(word) for word in argv)]
        command = Command(words, {**self.env, **(env or {})}, self.code)
        self._begun.append(command)
        return command

    def __call__(
        self, *argv: str | os.PathLike[str], env: dict[str, str] | None = None, timeout: float = PATIENCE
    ) -> Said:
        return self.begin(*argv, env=env).said(timeout)

    def run(self, text: str, *argv: str, env: dict[str, str] | None = None, **scripts: str) -> Said:
        """Runs a job to its end."""
        return self("run", self.job(text, **scripts), *argv, env=env)

    def start(self, text: str, *argv: str, env: dict[str, str] | None = None, **scripts: str) -> Command:
        """Begins to run a job; returns once it has an id."""
        before = set(self.runs)
        command = self.begin("run", self.job(text, **scripts), *argv, env=env)
        until(lambda: set(self.runs) - before or command.process.poll() is not None, "the run")
        return command

    @property
    def runs(self) -> list[Path]:
        try:
            return sorted((self.home / "runs").iterdir(), key=lambda path: path.stat().st_ctime)
        except FileNotFoundError:
            return []

    @property
    def dir(self) -> Path:
        """Of the newest run."""
        return self.runs[-1]

    @property
    def id(self) -> str:
        return self.dir.name

    def events(self, *names: str) -> list[dict[str, Any]]:
        """What the newest run's journal says; only events of these names, if any are given."""
        return [event for event in journal.read(str(self.dir)) if not names or event["ev"] in names]

    def ends(self) -> dict[str, str]:
        """How each rank ended last: `stage/role-rank` -> state."""
        return {f"{e['stage']}/{e['role']}-{e['rank']}": e["state"] for e in self.events("rank.ended")}

    @property
    def cause(self) -> dict[str, Any]:
        """Why the newest run ended."""
        found: dict[str, Any] = self.events("run.ended")[-1]["cause"]
        return found

    def log(self, rank: int = 0, role: str = "worker", stage: str = "main") -> str:
        path = run_layout.log(str(self.dir), stage, role, rank)
        return Path(path).read_bytes().decode("utf-8", "surrogateescape") if os.path.exists(path) else ""

    def printed(self, words: str, rank: int = 0, role: str = "worker", stage: str = "main") -> None:
        """Waits until a rank has printed something."""
        until(lambda: self.runs and words in self.log(rank, role, stage), f"{words!r} from {role}-{rank}")

    def output(self, name: str, stage: str = "main") -> str:
        return (Path(run_layout.output(str(self.dir), stage)) / name).read_text()

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("status", "--json", self.id).out)
        return found

    def processes(self) -> dict[int, str]:
        """Every living process of the machine that comes from here, with its command line."""
        found = {}
        mark = f"{MARK}={self.mark}".encode()
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                try:
                    if mark in Path(f"/proc/{name}/environ").read_bytes():
                        line = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ")
                        found[int(name)] = line.decode(errors="replace")
                except OSError:
                    continue
        return found

    def scratch(self) -> list[str]:
        return sorted(os.listdir(self.tmp))

    def nothing_is_left(self) -> None:
        """No process and no scratch file, as soon as the kernel has got round to it."""
        until(lambda: not self.processes() and not self.scratch(), "the end of all processes and scratch files")

    def close(self) -> Iterable[str]:
        """Clears away; says what had been left behind."""
        for command in self._begun:
            if command.process.poll() is None:
                command.process.terminate()
                command.said()
        try:
            self.nothing_is_left()
        except AssertionError:
            left = [f"process {pid}: {line}" for pid, line in self.processes().items()]
            left += [f"scratch {name}" for name in self.scratch()]
            for pid in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return left
        finally:
            shutil.rmtree(self.tmp, ignore_errors=True)
        return []
