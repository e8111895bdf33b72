"""What a process that hangs is doing, told from the outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from longboat.runtime.agent import stack_dump, stack_request, syscalls
from tests.local.place import until

THREE_THREADS = """\
Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "load.py", line 3 in load

Thread 0x00007f0000000002 [feeder] (most recent call first):
  File "load.py", line 9 in feed

Current thread 0x00007f0000000003 (most recent call first):
  File "work.py", line 5 in e
  File "work.py", line 4 in d
  File "work.py", line 3 in c
  File "work.py", line 2 in b
  File "work.py", line 1 in a
"""


def test_of_many_stacks_the_innermost_frames_of_the_main_thread_are_told() -> None:
    assert stack_dump.innermost(THREE_THREADS, 2) == ("work.py:5 in e", "work.py:4 in d", "and 2 other threads")
    assert len(stack_dump.innermost(THREE_THREADS)) == 5


def test_processes_of_one_rank_are_told_one_after_the_other() -> None:
    one = 'Current thread 0x01 (most recent call first):\n  File "a.py", line 1 in f\n'
    two = 'Current thread 0x01 (most recent call first):\n  File "b.py", line 2 in g\n'
    assert stack_dump.innermost(one + two) == ("a.py:1 in f", "b.py:2 in g")


def test_without_stacks_there_is_nothing_to_tell() -> None:
    assert stack_dump.innermost("") == ()


def test_a_stopped_process_is_said_to_be_stopped_and_a_dead_one_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        try:
            os.kill(process.pid, signal.SIGSTOP)
            until(lambda: stack_dump.state_of(process.pid).startswith("stopped by a signal ("), "the stop")
            assert "time.sleep(600)" in stack_dump.state_of(process.pid)
        finally:
            process.kill()
    assert stack_dump.state_of(process.pid) == "gone"


SLOW = """
import faulthandler, signal, sys, time
faulthandler.register(signal.SIGUSR1, file=open(sys.argv[1], "w"))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print("up", flush=True)
sys.stdin.readline()
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
time.sleep(600)
"""


def test_a_process_that_has_not_had_its_turn_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", SLOW, str(tmp_path / "stacks")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        monkeypatch.setattr(syscalls, "descendants", lambda _: [process.pid])
        monkeypatch.setattr(stack_request, "WAIT", 0.0)
        monkeypatch.setattr(stack_request, "PATIENCE", 60.0)
        asked = stack_request.StackRequest({("worker", 0): str(tmp_path / "stacks")})
        assert not asked.ready()
        process.stdin.write(b"\n")
        process.stdin.flush()
        until(asked.ready, "its stacks")
        until(lambda: "<string>" in asked.stacks()["worker", 0], "all of them")
        process.kill()
