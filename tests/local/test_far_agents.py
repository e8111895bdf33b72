"""Agents that outlive their driver: the zipapp, over TCP, with any Python from 3.9 on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from longboat.runtime import journal, plan
from longboat.runtime.journal import Event
from tests.local.place import PATIENCE
from tests.ports import free_port

ENGINE = Path(__file__).parents[1] / "plugins" / "far_engine.py"
HANG_ONCE = 'test "$LONGBOAT_GENERATION" -gt 1 || exec sleep 600'


def count(steps: int) -> str:
    return f"for i in $(seq 1 {steps}); do echo longboat: step=$i total={steps}; sleep 0.05; done"


def old_python() -> str:
    """The oldest Python from 3.9 on that can be found; this one at the worst."""
    places = [*(Path.home() / ".pyenv/versions").glob("3.9*/bin/python3.9"), shutil.which("python3.9")]
    return next((str(place) for place in places if place and Path(place).exists()), sys.executable)


class FarRun:
    def __init__(self, directory: Path, command: str, lease: float) -> None:
        self.directory = directory
        self.lease = lease
        directory.mkdir()
        role = plan.Role("worker", 2, command=("sh", "-c", command))
        stage = plan.Stage("train", shape="allreduce", roles=(role,))
        value = plan.Plan("far", code=str(directory), stages=(stage,))
        (directory / "plan.json").write_text(plan.to_json(value))
        self.port = free_port()
        self.driver: subprocess.Popen[bytes]

    def drive(self) -> None:
        command = [sys.executable, str(ENGINE), str(self.directory), str(self.port), str(self.lease), old_python()]
        self.driver = subprocess.Popen(command)

    def events(self, ev: str) -> list[Event]:
        return [event for event in journal.read(str(self.directory)) if event["ev"] == ev]

    def until(self, happened: Callable[[], bool], limit: float = PATIENCE) -> None:
        due = time.monotonic() + limit
        while not happened():
            assert time.monotonic() < due, (self.directory / "agents.log").read_text()
            time.sleep(0.02)

    def pids(self) -> list[int]:
        return [event["pid"] for event in self.events("rank.started")]


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Callable[[str, float], FarRun]]:
    made: list[FarRun] = []

    def make(command: str, lease: float) -> FarRun:
        made.append(FarRun(tmp_path / f"far-{len(made)}", command, lease))
        return made[-1]

    yield make
    for run in made:
        run.driver.kill()
        run.driver.wait()
        for file in (run.directory / "agents").glob("*"):
            try:
                os.kill(int(file.read_text()), signal.SIGKILL)
            except ProcessLookupError:
                pass


def test_the_zipapp_serves_seats_with_an_old_python_and_nothing_installed(far: Callable[[str, float], FarRun]) -> None:
    run = far(count(3), 30)
    run.drive()
    assert run.driver.wait(PATIENCE) == 0
    assert [event["state"] for event in run.events("rank.ended")] == ["succeeded", "succeeded"]
    assert run.events("rank.report")


def test_agents_train_on_while_the_driver_is_away_and_find_it_again(far: Callable[[str, float], FarRun]) -> None:
    run = far(count(80), 30)
    run.drive()
    run.until(lambda: len(run.pids()) == 2 and bool(run.events("rank.report")))
    run.driver.kill()
    run.driver.wait()
    before = run.pids()
    run.drive()
    assert run.driver.wait(PATIENCE) == 0
    assert run.pids() == before, "no rank was started again"
    assert [event["gen"] for event in run.events("gen.started")] == [1]
    assert run.events("run.ended")[-1]["state"] == "succeeded"


def test_what_was_on_its_way_to_a_driver_that_died_reaches_the_next_once(far: Callable[[str, float], FarRun]) -> None:
    run = far(count(60), 30)
    run.drive()
    run.until(lambda: len(run.pids()) == 2 and len(run.events("rank.report")) > 4)
    run.driver.send_signal(signal.SIGSTOP)  # from here on nobody reads what its connections take
    run.until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in run.pids()))
    run.driver.kill()
    run.driver.wait()
    run.drive()
    assert run.driver.wait(PATIENCE) == 0
    assert [event["gen"] for event in run.events("gen.started")] == [1]
    for rank in (0, 1):
        told = [event["points"] for event in run.events("rank.report") if event["rank"] == rank]
        assert [point["step"] for points in told for point in points] == list(range(1, 61))


def test_a_lease_that_ran_out_ends_the_ranks_and_the_next_driver_starts_a_new_generation(
    far: Callable[[str, float], FarRun],
) -> None:
    run = far(HANG_ONCE, 5)
    run.drive()
    run.until(lambda: len(run.pids()) == 2)
    run.driver.kill()
    run.driver.wait()
    run.until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in run.pids()))
    run.drive()
    assert run.driver.wait(PATIENCE) == 0
    assert [event["gen"] for event in run.events("gen.started")] == [1, 2]


def test_a_driver_without_the_token_is_not_obeyed(far: Callable[[str, float], FarRun]) -> None:
    run = far(count(2000), 30)
    run.drive()
    run.until(lambda: len(run.pids()) == 2)
    run.driver.kill()
    run.driver.wait()
    right = (run.directory / "token").read_text()
    (run.directory / "token").write_text("somebody else's")
    run.drive()
    run.until(lambda: len(run.events("run.started")) == 2)
    time.sleep(2)
    assert all(Path(f"/proc/{pid}").exists() for pid in run.pids()), "they train on"
    assert len(run.events("gen.started")) == 1
    run.driver.kill()
    run.driver.wait()
    (run.directory / "token").write_text(right)
    heard = len(run.events("rank.report"))
    run.drive()
    run.until(lambda: len(run.events("rank.report")) > heard)
    run.driver.send_signal(signal.SIGTERM)
    run.until(lambda: bool(run.events("run.ended")))
