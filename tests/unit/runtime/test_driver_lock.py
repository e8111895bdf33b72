"""Who drives a run, with real processes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from longboat.runtime import driver_lock
from longboat.runtime.errors import LongboatError

HOLD = """import sys, signal
from longboat.runtime import driver_lock
driver_lock.take(sys.argv[1])
print(flush=True)
signal.pause()
"""


def test_nobody_drives_a_run_without_a_lock(tmp_path: Path) -> None:
    assert driver_lock.holder(str(tmp_path)) == 0
    assert driver_lock.holder(str(tmp_path / "none")) == 0


def test_the_holder_is_named_keeps_others_out_and_is_gone_when_it_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        driver.stdout.readline()
        assert driver_lock.holder(str(tmp_path)) == driver.pid
        with pytest.raises(LongboatError, match="is already driven by another process"):
            driver_lock.take(str(tmp_path))
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    assert (tmp_path / "driver.lock").exists()
    assert driver_lock.holder(str(tmp_path)) == 0, "the file that is left does not lie"
    fd = driver_lock.take(str(tmp_path))
    os.close(fd)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named_and_nobody_is_said_to_drive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    os.close(driver_lock.take(str(tmp_path)))

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.lockf", refuse)
    monkeypatch.setattr("fcntl.fcntl", refuse)
    for ask in (driver_lock.take, driver_lock.try_take, driver_lock.holder):
        with pytest.raises(LongboatError, match=f"cannot lock files in {tmp_path}: {os.strerror(number)}") as said:
            ask(str(tmp_path))
        assert "LONGBOAT_HOME" in said.value.hint


def test_a_fork_of_the_driver_does_not_hold_on_to_the_run(tmp_path: Path) -> None:
    script = HOLD.replace(
        "signal.pause()", "import os; pid = os.fork(); signal.pause() if pid == 0 else print(pid, flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        driver.stdout.readline()
        child = int(driver.stdout.readline())
        driver.wait()
        try:
            os.kill(child, 0)
            assert driver_lock.holder(str(tmp_path)) == 0
        finally:
            os.kill(child, signal.SIGKILL)
