"""What every engine promises, as tests: each engine under test is a subclass with an `on` fixture.

They use the interface alone (`longboat.engines.interface`), so they read like the CLI and the Python API.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from longboat import spec
from longboat.engines import registry
from longboat.engines.interface import (
    CanDiagnose,
    CanExec,
    Engine,
    EngineContext,
    RunHandle,
    RunRequest,
    StopOutcome,
    able,
    silent,
)
from longboat.runs.run_state import RunState
from longboat.runs.stage_reuse import REUSED, RUNS
from longboat.runtime.errors import LongboatError
from longboat.runtime.plan import Plan

PATIENCE = 300.0

TWO_STAGES = """
  first:
    run: echo from the first; echo made > $LONGBOAT_OUTPUT_DIR/file
  second:
    after: first
    run: echo from the second, attempt $LONGBOAT_ATTEMPT; test $LONGBOAT_ATTEMPT -gt 1 || exit 3
    restarts: 0
"""
WAITING = """
  train:
    run: echo waits; sleep 600
    grace: 1
"""


@dataclass
class EngineUnderTest:
    name: str
    context: EngineContext
    directory: Path
    head: str = ""
    """More lines for every job file: an image, say."""
    started: list[RunHandle] = field(default_factory=list)

    @property
    def engine(self) -> Engine:
        return registry.engine(self.name, self.context)

    def plan(self, stages: str) -> Plan:
        file = self.directory / "job.yaml"
        file.write_text(f"name: contract\n{self.head}stages:{stages}")
        remote = registry.is_remote(self.name)
        return spec.load(str(file), engine=self.name, remote=remote, environ={}).plan()

    def start(self, stages: str) -> RunHandle:
        run, _ = self.engine.submit(RunRequest(self.plan(stages)), silent)
        self.started.append(run)
        assert run.detach()
        return run

    def close(self) -> None:
        for run in self.started:
            with contextlib.suppress(LongboatError):
                run.remove(force=True)


def until(run: RunHandle, holds: Callable[[RunState], bool]) -> RunState:
    due = time.monotonic() + PATIENCE
    while not holds(state := run.state()):
        assert time.monotonic() < due, state
        run.pause(0.05)
    return state


class EngineContract:
    def test_a_run_can_be_read_and_resumed_by_whoever_finds_it(self, on: EngineUnderTest) -> None:
        run = on.start(TWO_STAGES)
        state = run.wait(PATIENCE)
        assert (state.state, state.code) == ("failed", 1)
        assert state.cause is not None
        assert (state.cause.stage, state.cause.exit_code) == ("second", 3)
        by_name = registry.find(on.name, on.context, "contract")
        anywhere = registry.find(None, EngineContext(on.context.home, on.context.environ), run.id)
        assert (by_name.id, anywhere.id, anywhere.engine) == (run.id, run.id, on.name)
        assert run.id in [each.id for each in on.engine.runs().states]
        kinds = [event["ev"] for event in anywhere.events()]
        assert (kinds[0], kinds[-1]) == ("run.started", "run.ended")
        assert {b"from the first", b"from the second, attempt 1"} <= {line.text for line in anywhere.logs()}
        with anywhere.files() as files:
            assert "output/first/file" in [entry.path for entry in files.entries("output", 3)]
            contents = [item.source.read() for item in files.items("output/first/file") if item.source is not None]
            assert contents == [b"made\n"]
        assert (anywhere.fetch("output/first") / "file").read_text() == "made\n"

        decided = on.engine.resumption(anywhere, RunRequest())
        assert {each.stage: each.does for each in decided.decisions} == {"first": REUSED, "second": RUNS}
        resumed, decisions = on.engine.resume(anywhere, RunRequest(), silent)
        assert tuple(decisions) == tuple(decided.decisions)
        assert resumed.detach()
        state = resumed.wait(PATIENCE)
        assert (state.id, state.state, state.code, state.resumes) == (run.id, "succeeded", 0, 1), state.cause
        with pytest.raises(LongboatError, match="nothing to resume"):
            on.engine.resume(resumed, RunRequest(), silent)

    def test_a_running_run_is_protected_until_it_is_stopped(self, on: EngineUnderTest) -> None:
        run = on.start(WAITING)
        state = until(run, lambda state: any(rank.state == "running" for s in state.stages for rank in s.ranks))
        assert state.state == "running"
        with pytest.raises(TimeoutError):
            run.wait(0.1)
        with pytest.raises(LongboatError, match="still running"):
            on.engine.resumption(run, RunRequest())
        with pytest.raises(LongboatError, match="is still running"):
            run.remove()
        rank = next(rank for stage in state.stages for rank in stage.ranks)
        if isinstance(run, CanExec):
            assert run.exec(rank, ["sh", "-c", 'test "$LONGBOAT_STAGE" = train && exit 7'], on.context.environ) == 7
        else:
            with pytest.raises(LongboatError, match=f"the engine {on.name} does not support `exec`"):
                able(run, CanExec, "exec")
        assert run.stop("the contract", now=True, wait=PATIENCE) is StopOutcome.ENDED
        state = run.state()
        assert state.state == "stopped"
        assert state.cause is not None
        assert "the contract" in state.cause.message
        assert run.stop("the contract") is StopOutcome.NOT_RUNNING
        run.wait(PATIENCE)  # its driver may still be on its way out
        run.remove()
        with pytest.raises(LongboatError):
            on.engine.find(run.id)

    def test_a_name_that_no_run_has_is_an_error(self, on: EngineUnderTest) -> None:
        with pytest.raises(LongboatError):
            registry.find(on.name, on.context, "no-such-run")

    def test_doctor_says_whether_a_job_can_run_or_that_it_is_not_supported(self, on: EngineUnderTest) -> None:
        engine = on.engine
        if isinstance(engine, CanDiagnose):
            diagnosis = engine.doctor(on.plan(WAITING), probe=False)
            assert diagnosis.ok, [
                finding for finding in (*diagnosis.place, *diagnosis.job) if finding.state == "missing"
            ]
            assert diagnosis.place
        else:
            with pytest.raises(LongboatError, match="does not support `doctor`"):
                able(engine, CanDiagnose, "doctor")


def environment(**more: str) -> Mapping[str, str]:
    import os

    return {**os.environ, **more}
