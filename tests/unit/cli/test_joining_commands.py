"""wait, exec and attach: commands that stay with a run which goes on."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from longboat import api
from longboat.cli import exec_command
from longboat.cli.console import Console
from longboat.cli.main import main
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import replace
from tests.unit.cli.reading import New, err, failed, longboat, out


def test_wait_takes_over_the_exit_code_and_gives_up_in_time(new_run: New, console: Console) -> None:
    run = new_run()
    run.start(0, 1)
    run.driven()
    assert main(["wait", "--timeout", "0s"], console) == 1
    assert "still running" in err(console)
    run.event(
        "run.ended", state="gate_missed", code=3, cause=Cause(CauseKind.GATE_NOT_MET, "accuracy 0.5, asked for 0.7")
    )
    run.undriven()
    assert main(["wait", "--json"], console) == 3
    told = json.loads(out(console))
    assert (told["state"], told["code"], told["dir"]) == ("gate_missed", 3, str(run.dir))


class Hands:
    """A clock that moves when somebody sleeps; `then` is called when it has moved by so many seconds."""

    def __init__(self, after: float, then: Callable[[], None]) -> None:
        self.slept, self._after, self._then = 0.0, after, then

    def monotonic(self) -> float:
        return self.slept

    def sleep(self, seconds: float) -> None:
        before, self.slept = self.slept, self.slept + seconds
        if before < self._after <= self.slept:
            self._then()


@pytest.mark.parametrize("waits", [lambda run, _: api.Run(run.id).wait(), lambda _, console: main(["wait"], console)])
def test_who_has_waited_for_a_run_may_remove_it(
    new_run: New,
    console: Console,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    waits: Callable[[Any, Console], object],
) -> None:
    """Its driver writes the end, and is gone a moment later."""
    run = new_run()
    run.driven()
    run.start(0, 1)
    run.succeed(0, 1)
    monkeypatch.setenv("LONGBOAT_HOME", str(tmp_path))
    monkeypatch.setattr("longboat.runs.watch.time", Hands(1.0, run.undriven))
    waits(run, console)
    assert main(["rm", run.id], console) == 0


def test_a_driver_that_does_not_leave_is_waited_for_until_the_timeout(
    new_run: New, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run()
    run.driven()
    run.start(0, 1)
    run.succeed(0, 1)
    monkeypatch.setattr("longboat.runs.watch.time", SimpleNamespace(monotonic=lambda: math.inf, sleep=None))
    assert main(["wait", "--timeout", "5s"], console) == 0


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes beside which a command was run."""
    pids: list[int] = []

    def execute(pid: int, _command: list[str]) -> int:
        pids.append(pid)
        return 7

    monkeypatch.setattr("longboat.engines.local.rank_exec.execute", execute)
    return pids


def test_exec_waits_for_a_rank_that_has_not_started_yet(
    new_run: New, console: Console, monkeypatch: pytest.MonkeyPatch, joined: list[int]
) -> None:
    run = new_run()
    run.driven()
    run.start(0)
    clock = Hands(5.0, lambda: run.rank("rank.started", 1, pid=101))
    monkeypatch.setattr("longboat.cli.exec_command.time", clock)
    assert main(["exec", run.id, "--", "true"], console) == 7
    assert (joined, clock.slept) == ([100], 0.0), "one that fits runs already"
    assert main(["exec", run.id, "--rank", "1", "--", "true"], console) == 7
    assert joined == [100, 101]


def test_exec_does_not_wait_for_a_rank_that_will_not_start(
    new_run: New, console: Console, monkeypatch: pytest.MonkeyPatch, joined: list[int]
) -> None:
    run = new_run()
    run.driven()
    run.start(0)
    clock = Hands(math.inf, run.undriven)
    monkeypatch.setattr("longboat.cli.exec_command.time", clock)
    with pytest.raises(LongboatError, match="no such rank is running"):
        main(["exec", run.id, "--rank", "2", "--", "true"], console)
    run.rank("rank.ended", 0, state="succeeded", code=0)
    with pytest.raises(LongboatError, match=r"no rank of .* is running: it is running"):
        main(["exec", run.id, "--rank", "0", "--", "true"], console)
    assert clock.slept == 0.0
    with pytest.raises(LongboatError, match=r"no rank of .* is running: it is running"):
        main(["exec", run.id, "--rank", "1", "--", "true"], console)
    assert clock.slept == pytest.approx(exec_command.PATIENCE)
    run.undriven()
    with pytest.raises(LongboatError, match=r"no rank of .* is running: it is lost"):
        main(["exec", run.id, "--", "true"], console)
    assert clock.slept == pytest.approx(exec_command.PATIENCE)
    assert joined == []


class Interrupting(io.StringIO):
    """Ctrl-C is pressed as soon as these words can be read."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self._words = words

    def write(self, text: str) -> int:
        written = super().write(text)
        if self._words in text:
            raise KeyboardInterrupt
        return written


def test_ctrl_c_as_soon_as_attach_has_said_something_ends_the_viewing_alone(new_run: New, console: Console) -> None:
    run = new_run()
    run.start(0, 1)
    run.driven()
    hasty = replace(console, err=Interrupting("attached to"))
    assert main(["attach"], hasty) == 130
    assert f"{run.id} continues" in err(hasty)


def test_attach_to_a_run_that_is_over_gives_its_end_and_code(new_run: New, console: Console) -> None:
    run = new_run()
    failed(run)
    assert main(["attach"], console) == 1
    assert f"longboat why {run.id}" in err(console)


def test_interrupting_attach_ends_the_viewing_alone(new_run: New, tmp_path: Path) -> None:
    import signal

    run = new_run()
    run.start(0, 1)
    run.driven()
    run.log(0, b"shown\n")
    viewer = longboat(tmp_path, "attach")
    assert viewer.stderr is not None
    while viewer.stderr.readline() != b"[worker-0] shown\n":
        pass
    viewer.send_signal(signal.SIGINT)
    _, said = viewer.communicate(timeout=30)
    assert viewer.returncode == 130
    assert f"longboat attach {run.id}".encode() in said
    assert f"longboat stop {run.id}".encode() in said
