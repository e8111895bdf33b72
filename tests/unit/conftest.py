"""Run directories for the rooms that read them, written by the real journal."""

from __future__ import annotations

import fcntl
import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from longboat.cli.console import Console
from longboat.runs.store import Store
from longboat.runtime import journal, plan, run_layout

# With this module TensorBoard reads event files by itself, checksums included. Otherwise it imports TensorFlow, which
# takes seconds in every worker.
sys.modules.setdefault("tensorboard.compat.notf", ModuleType("tensorboard.compat.notf"))


class Written:
    """A run as its driver would leave it, event by event. Time passes by a second an event."""

    def __init__(self, home: Path, name: str, stages: dict[str, int], began: float) -> None:
        self.dir = Store(home).create(name)
        self.id = self.dir.name
        self.now = began
        planned = [
            plan.Stage(stage, shape="allreduce", roles=(plan.Role("worker", ranks),)) for stage, ranks in stages.items()
        ]
        self.plan = plan.Plan(name, file="/jobs/job.yaml", stages=tuple(planned))
        (self.dir / run_layout.PLAN).write_text(plan.to_json(self.plan))
        self._writer = journal.JournalWriter(str(self.dir), clock=self._tick)
        self._lock = -1

    def _tick(self) -> float:
        self.now += 1.0
        return self.now

    def event(self, ev: str, **keys: Any) -> None:
        self._writer.write(ev, **keys)

    def start(self, *ranks: int, stage: str = "train", gen: int = 1) -> None:
        """The run, a stage and its ranks begin."""
        self.event("run.started", run=self.id, name=self.plan.name, pid=77, host="here", engine="local")
        self.event("stage.started", stage=stage, attempt=1, round=1)
        self.event("gen.started", stage=stage, gen=gen, attempt=1, round=1)
        for rank in ranks:
            self.rank("rank.started", rank, stage, gen=gen, pid=100 + rank, log_offset=0, restart=0)

    def rank(self, ev: str, rank: int, stage: str = "train", gen: int = 1, **keys: Any) -> None:
        self.event(ev, stage=stage, role="worker", rank=rank, gen=gen, **keys)

    def succeed(self, *ranks: int, stage: str = "train") -> None:
        for rank in ranks:
            self.rank("rank.ended", rank, stage, state="succeeded", code=0)
        self.event("stage.ended", stage=stage, state="succeeded", attempts=1)
        self.event("run.ended", state="succeeded", code=0)

    def log(self, rank: int, data: bytes, stage: str = "train") -> None:
        path = Path(run_layout.log(str(self.dir), stage, "worker", rank))
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as file:
            file.write(data)

    def driven(self) -> None:
        """From now on a living process (a child, as locks are per process) holds the run's lock."""
        ready, go = os.pipe()
        hold, release = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            os.close(release)
            fd = os.open(self.dir / run_layout.LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.lockf(fd, fcntl.LOCK_EX)
            os.write(go, b"x")
            os.read(hold, 1)
            os._exit(0)
        os.close(hold)
        os.read(ready, 1)
        self._lock = release

    def undriven(self) -> None:
        """The driver is gone."""
        if self._lock >= 0:
            os.close(self._lock)
            os.waitpid(self._child, 0)
            self._lock = -1


@pytest.fixture
def new_run(tmp_path: Path) -> Iterator[Callable[..., Written]]:
    made: list[Written] = []

    def make(name: str = "demo", began: float = 1_000_000.0, **stages: int) -> Written:
        made.append(Written(tmp_path, name, stages or {"train": 2}, began))
        return made[-1]

    yield make
    for run in made:
        run.undriven()


@pytest.fixture
def console(tmp_path: Path) -> Console:
    """A console of strings whose home is where `new_run` puts its runs."""
    return Console(io.StringIO(), io.StringIO(), {"LONGBOAT_HOME": str(tmp_path)})
