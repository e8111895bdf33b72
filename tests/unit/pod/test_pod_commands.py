"""A stop that is asked for in the driver's pod, whatever the driver is doing just then."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from longboat.runtime import journal, run_layout
from longboat.runtime.kube_client import names
from longboat.runtime.pod import pod_commands
from tests.local.place import PATIENCE, until

DRIVER = """
import select, sys
from longboat.runtime import driver_lock
from longboat.runtime.driver.stop_signals import StopSignals
signals = StopSignals(leave_on_term=True)
held = driver_lock.take(sys.argv[1])
select.select([signals.fileno()], [], [])
print(*signals.received())
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(names, "RUN", str(tmp_path))
    monkeypatch.setattr(pod_commands, "PATIENCE", PATIENCE)
    return tmp_path


def test_a_stop_waits_for_a_driver_that_is_only_coming(run: Path) -> None:
    codes: list[int] = []
    asking = threading.Thread(target=lambda: codes.append(pod_commands.stop(["longboat stop"])))
    asking.start()
    until((run / run_layout.STOP).exists, "the stop, written down")
    driver = subprocess.run([sys.executable, "-c", DRIVER, str(run)], capture_output=True, text=True, check=True)
    asking.join()
    assert (codes, driver.stdout) == ([0], "2\n")
    assert (run / run_layout.STOP).read_text() == "longboat stop"


def test_a_run_that_has_ended_cannot_be_stopped(run: Path) -> None:
    writer = journal.JournalWriter(str(run))
    writer.write("run.ended", state="succeeded", code=0)
    writer.close()
    assert pod_commands.stop(["longboat stop"]) == 3
    assert not (run / run_layout.STOP).exists()
