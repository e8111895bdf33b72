"""The debug log of a real run: where it is, what it tells, and that nothing is written without it."""

from __future__ import annotations

import pytest

from longboat.runtime import run_layout
from tests.local.place import Place

JOB = "shape: allreduce\nranks: 2\nrestarts: 0\nrun: python train.py\nsecrets: {PIN: {env: PIN}}\n"
FAILS = """
import os, sys, longboat
print("imports", os.environ["PIN"], flush=True)
if os.environ["LONGBOAT_RANK"] == "1":
    sys.exit("no luck with " + os.environ["PIN"])
"""


def logs(longboat: Place) -> dict[str, str]:
    """Debug logs of the newest run, by their paths in it."""
    paths = [longboat.dir / run_layout.DRIVER_LOG, *longboat.dir.glob("agents/*/*.log")]
    return {str(path.relative_to(longboat.dir)): path.read_text() for path in paths if path.exists()}


@pytest.mark.parametrize("way", ["variable", "option"])
def test_driver_and_agents_log_what_they_do_and_no_secret(longboat: Place, way: str) -> None:
    job = longboat.job(JOB, train=FAILS)
    env = {"PIN": "tangerine", **({"LONGBOAT_LOG": "debug"} if way == "variable" else {})}
    assert longboat("run", job, *(["-v"] if way == "option" else []), env=env).code == 1
    written = logs(longboat)
    assert sorted(written) == ["agents/main/worker-0.log", "agents/main/worker-1.log", "driver.log"]
    for line in (
        "Launch to main/worker-1",
        "main/worker-1 joined",
        "Start to main/worker-0",
        "main/worker-1 sent exited",
    ):
        assert line in written["driver.log"], written["driver.log"]
    assert '"ev":"run.ended"' in written["driver.log"]
    agent = written["agents/main/worker-1.log"]
    for line in (
        "connected to the driver",
        "received start",
        "started incarnation (1, 0)",
        "code 1, signal 0, user_error",
    ):
        assert line in agent, agent
    assert "tangerine" not in "".join(written.values())


def test_the_level_leaves_out_what_is_below_it(longboat: Place) -> None:
    assert longboat("run", longboat.job("run: 'true'\n"), env={"LONGBOAT_LOG": "INFO"}).code == 0
    driver = logs(longboat)["driver.log"]
    assert " INFO driver[" in driver
    assert " DEBUG " not in driver


def test_without_a_level_there_is_no_file_and_logging_is_not_even_imported(longboat: Place) -> None:
    job = longboat.job("shape: allreduce\nranks: 2\nrun: 'true'\n")
    longboat.python.extend(["-X", "importtime"])
    said = longboat("run", job)
    assert said.code == 0
    assert logs(longboat) == {}
    assert not (longboat.dir / "agents").exists()
    imported = {line.rpartition("|")[2].strip() for line in said.err.splitlines() if line.startswith("import time:")}
    assert "longboat.runtime.debug_log" in imported
    assert "logging" not in imported


def test_an_unknown_level_is_refused_before_a_run_exists(longboat: Place) -> None:
    said = longboat("run", longboat.job("run: 'true'\n"), env={"LONGBOAT_LOG": "loud"})
    assert said.code == 2
    assert said.err == "error: LONGBOAT_LOG=loud is not a level\n\nhint: use one of: debug, info, warning, error\n"
    assert longboat.runs == []
