"""A pause does not end a healthy gang, and a signal that is ignored at the start stays ignored."""

from __future__ import annotations

import shlex
import signal
import time
from pathlib import Path

import pytest

from longboat.runtime.agent import syscalls
from tests.local.place import Place, until

JOB = "run: [python, steps.py]\nshape: allreduce\nranks: 2\nrestarts: 0\n"
STEPS = """
import os, time
while not os.path.exists("enough"):
    print("step", flush=True)
    time.sleep(0.05)
"""
LONGER_THAN_THE_LEASE = 20.0


def states(pids: list[int]) -> set[str]:
    return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids}


def continues_to_its_end(longboat: Place) -> None:
    for rank in range(2):
        size = len(longboat.log(rank))
        until(lambda rank=rank, size=size: len(longboat.log(rank)) > size, f"another step of {rank}")  # type: ignore[misc]
    longboat.file("enough", "")


@pytest.mark.parametrize("whole_run", [False, True])
def test_a_pause_longer_than_the_lease_is_not_held_against_the_agents(longboat: Place, whole_run: bool) -> None:
    command = longboat.start(JOB, steps=STEPS)
    longboat.printed("step", 0)
    longboat.printed("step", 1)
    pids = [command.pid, *(syscalls.descendants(command.pid) if whole_run else ())]
    syscalls.signal_all(pids, signal.SIGSTOP)
    time.sleep(LONGER_THAN_THE_LEASE)
    syscalls.signal_all(pids, signal.SIGCONT)
    continues_to_its_end(longboat)
    said = command.said()
    assert said.code == 0, said.err
    assert len(longboat.events("gen.started")) == 1
    assert any("the driver was paused for" in e["text"] for e in longboat.events("note"))


def test_ctrl_z_pauses_the_ranks_and_fg_continues_them(longboat: Place) -> None:
    command = longboat.start(JOB, steps=STEPS)
    longboat.printed("step", 0)
    longboat.printed("step", 1)
    until(lambda: len(longboat.events("rank.started")) == 2)
    pids = [event["pid"] for event in longboat.events("rank.started")]
    command.signal(signal.SIGTSTP)
    until(lambda: states([command.pid, *pids]) == {"T"}, "the pause")
    command.signal(signal.SIGCONT)
    continues_to_its_end(longboat)
    assert command.said().code == 0


def test_a_driver_killed_in_a_pause_leaves_nothing(longboat: Place) -> None:
    command = longboat.start(JOB, steps=STEPS)
    longboat.printed("step", 0)
    command.signal(signal.SIGTSTP)
    until(lambda: states([command.pid]) == {"T"}, "the pause")
    command.kill()
    longboat.nothing_is_left()


@pytest.mark.parametrize("start", ["trap '' HUP; exec", "exec nohup"])
def test_a_run_that_ignores_sighup_survives_the_end_of_its_terminal(longboat: Place, start: str) -> None:
    longboat.python = ["sh", "-c", f'{start} {shlex.join(longboat.python)} "$@"', "sh"]
    command = longboat.start(JOB, steps=STEPS)
    longboat.printed("step", 0)
    longboat.printed("step", 1)
    command.signal(signal.SIGHUP)
    continues_to_its_end(longboat)
    said = command.said()
    assert said.code == 0, said.err
    assert longboat.events("stopping") == []


def test_a_background_job_of_a_script_ignores_ctrl_c_and_obeys_stop(longboat: Place) -> None:
    longboat.python = ["sh", "-c", f"trap '' INT QUIT; exec {shlex.join(longboat.python)} \"$@\"", "sh"]
    command = longboat.start(JOB, steps=STEPS)
    longboat.printed("step", 0)
    longboat.printed("step", 1)
    command.signal(signal.SIGINT)
    size = len(longboat.log())
    until(lambda: len(longboat.log()) > size, "another step")
    assert longboat("stop", "--now").code == 0
    assert command.said().code == 130
    assert [event["by"] for event in longboat.events("stopping")] == ["longboat stop"]
