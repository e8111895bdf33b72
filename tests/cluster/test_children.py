"""What a command runs does not outlive it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.places import CHECKOUT, locked

COMMAND = """
import sys
from pathlib import Path
from tests.cluster import children
from tests.cluster.places import locked
with locked(Path(sys.argv[1])):
    children.run("sh", "-c", "touch $0; exec sleep 600", sys.argv[2])
"""


def start(tmp_path: Path, **environment: str) -> "subprocess.Popen[bytes]":
    argv = [sys.executable, "-c", COMMAND, str(tmp_path / "lock"), str(tmp_path / "ran")]
    return subprocess.Popen(argv, cwd=CHECKOUT, env=os.environ | environment)


def until_exists(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.01)


def test_a_program_ends_with_a_killed_command_and_holds_its_lock_till_then(tmp_path: Path) -> None:
    command = start(tmp_path)
    until_exists(tmp_path / "ran")
    command.kill()
    command.wait()
    with locked(tmp_path / "lock", patience=60):
        pass


def test_a_program_whose_command_was_killed_before_it_began_does_not_begin(tmp_path: Path) -> None:
    slow = tmp_path / "bin/setpriv"
    slow.parent.mkdir()
    slow.write_text(
        f"#!/bin/sh\ntouch {tmp_path}/began\nwhile ! test -e {tmp_path}/go; do sleep 0.01; done\n"
        'PATH=${PATH#*:} exec setpriv "$@"\n'
    )
    slow.chmod(0o755)
    command = start(tmp_path, PATH=f"{slow.parent}:{os.environ['PATH']}")
    until_exists(tmp_path / "began")
    command.send_signal(signal.SIGKILL)
    command.wait()
    with pytest.raises(BlockingIOError), locked(tmp_path / "lock", patience=0):
        pass
    (tmp_path / "go").touch()
    with locked(tmp_path / "lock", patience=60):
        pass
    assert not (tmp_path / "ran").exists()
