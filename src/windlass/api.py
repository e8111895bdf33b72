"""Windlass from Python: what the commands do, with the same names.

job = windlass.load("job.yaml", set={"STEPS": 200})
print(job.plan())
run = job.run()
run.wait()
run.status().state, run.why().headline, list(run.logs())
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from windlass import spec
from windlass.errors import WindlassError
from windlass.plan import Plan

if TYPE_CHECKING:
    from windlass.runs.logs import Line
    from windlass.runs.values import RunState
    from windlass.runs.why import Explanation


@dataclass(frozen=True)
class Job:
    """A job file with its params settled."""

    spec: spec.Job

    def plan(self) -> Plan:
        """What a run would do: a frozen value, nothing is started."""
        return self.spec.plan()

    def run(self, home: str | None = None) -> Run:
        """Starts the job on this machine, in the background."""
        from windlass.engines.local import start

        opened = start.opened(self.plan(), _home(home), os.environ)
        return _background(opened.directory, opened.events)


def load(
    path: str | os.PathLike[str] = ".",
    *,
    set: Mapping[str, object] | None = None,
    preset: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Job:
    """Reads a job file. Raises windlass.errors.WindlassError with every problem that it has."""
    sets = {name: _text(value) for name, value in (set or {}).items()}
    return Job(spec.load(os.fspath(path), sets=sets, preset=preset, environ=os.environ if environ is None else environ))


class Run:
    """A run on this machine, by id, beginning of an id, or name of the job; without one, the newest."""

    def __init__(self, run: str | None = None, home: str | None = None) -> None:
        from windlass.runs.store import Store

        self._home = _home(home)
        self.directory: Path = Store(self._home).find(run)
        self.id = self.directory.name

    def __repr__(self) -> str:
        return f"<Run {self.id} {self.status().state}>"

    def status(self) -> RunState:
        from windlass.runs.state import load as load_state

        return load_state(self.directory)

    def wait(self, timeout: float | None = None) -> RunState:
        """Until it has ended; TimeoutError when that takes longer."""
        from windlass.runs.store import alive

        due = None if timeout is None else time.monotonic() + timeout
        while not (state := self.status()).over:
            if due is not None and time.monotonic() > due:
                raise TimeoutError(f"{self.id} is still {state.state} after {timeout:g} s")
            time.sleep(0.05)
        while alive(self.directory) and (due is None or time.monotonic() < due):
            time.sleep(0.005)  # its driver has written the end and is on its way out
        return state

    def logs(self) -> Iterator[Line]:
        """What the ranks have printed so far, line by line."""
        from windlass.runs import logs

        return logs.lines(logs.read(self.directory))

    def why(self) -> Explanation:
        from windlass.runs.why import explain

        return explain(self.status(), time.time())

    def output(self, stage: str) -> Path:
        from windlass import layout

        return Path(layout.output(str(self.directory), stage))

    def stop(self, now: bool = False, wait: float | None = 600) -> bool:
        from windlass.engines.local import engine

        return engine.stop(str(self.directory), by="Run.stop()", now=now, wait=wait)

    def resume(self) -> Run:
        """Goes on with a run that was stopped, lost or failed."""
        from windlass.engines.local import start

        opened = start.reopened(self.id, self._home, os.environ)
        return _background(opened.directory, opened.events)

    def rm(self) -> None:
        from windlass.runs.store import Store

        Store(self._home).remove(self.directory)


def _background(directory: str, events: int) -> Run:
    """A driver in a fresh interpreter: a notebook has threads, and must not be forked."""
    from windlass import journal, layout

    home, run = str(Path(directory).parent.parent), os.path.basename(directory)
    with open(os.path.join(directory, layout.DRIVER_LOG), "ab") as log:
        command = [sys.executable, "-m", "windlass.engines.local", directory]
        driver = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    while len(journal.read(directory)) <= events:
        if driver.poll() is not None:
            raise WindlassError(f"{run} did not start", f"see {directory}/{layout.DRIVER_LOG}")
        time.sleep(0.005)
    return Run(run, home)


def _home(home: str | None) -> str:
    return os.path.abspath(os.path.expanduser(home or os.environ.get("WINDLASS_HOME") or "~/.windlass"))


def _text(value: object) -> str:
    """A value as `--set` takes it."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return str(value)
