"""Ending a run on purpose: Ctrl-C, `longboat stop`, and scripts that want to know."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys

from tests.local.place import PATIENCE, Place, until

STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
print("up", flush=True)
while True:
    time.sleep(0.01)
"""

POLITE = """
import time, longboat
step = 0
longboat.stopping()
print("up", flush=True)
while not longboat.stopping():
    time.sleep(0.005)
print("saved", flush=True)
"""


def test_ctrl_c_asks_the_ranks_and_a_script_that_listens_ends_cleanly(longboat: Place) -> None:
    command = longboat.start("run: [python, work.py]\nshape: allreduce\nranks: 2\n", work=POLITE)
    longboat.printed("up", 0)
    longboat.printed("up", 1)
    command.signal(signal.SIGINT)
    said = command.said()
    assert said.code == 130
    assert longboat.log(0) == longboat.log(1) == "up\nsaved\n"
    assert longboat.events("run.ended")[0]["state"] == "stopped"
    assert longboat.cause["kind"] == "stopped_by_user"
    assert "stopped by Ctrl-C" in said.err
    assert f"longboat run --resume {longboat.id}" in said.err
    assert set(longboat.ends().values()) == {"stopped"}


def test_a_program_behind_a_shell_gets_its_grace_though_the_shell_dies_at_once(longboat: Place) -> None:
    slow = POLITE.replace('print("saved"', 'time.sleep(0.5)\nprint("saved"')
    command = longboat.start("run: python work.py; true\n", work=slow)
    longboat.printed("up")
    command.signal(signal.SIGINT)
    assert command.said().code == 130
    assert longboat.log() == "up\nsaved\n"


def test_a_rank_that_does_not_listen_is_killed_after_its_grace(longboat: Place) -> None:
    command = longboat.start("run: [python, work.py]\ngrace: 10\n", work=STUBBORN)
    longboat.printed("up")
    command.signal(signal.SIGINT)
    assert command.said().code == 130
    assert longboat.log() == "up\nasked\n"
    ended = longboat.events("rank.ended")[0]
    assert (ended["state"], ended["signal"]) == ("stopped", 9)


def test_a_second_ctrl_c_kills_at_once(longboat: Place) -> None:
    command = longboat.start("run: [python, work.py]\ngrace: 3000\n", work=STUBBORN)
    longboat.printed("up")
    command.signal(signal.SIGINT)
    longboat.printed("asked")
    command.signal(signal.SIGINT)
    assert command.said().code == 130
    assert [e["now"] for e in longboat.events("stopping")] == [False, True]


def test_ctrl_c_typed_at_a_terminal_stops_the_run(longboat: Place) -> None:
    job = longboat.job("run: [python, work.py]\n", work=POLITE)
    terminal, theirs = pty.openpty()
    command = subprocess.Popen(
        ["setsid", "--ctty", sys.executable, "-m", "longboat", "run", job],
        env={**longboat.env, "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        longboat.printed("up")
        os.write(terminal, b"\x03")
        os.set_blocking(terminal, False)
        until(lambda: drained(terminal) or command.poll() is not None)
        assert command.wait(PATIENCE) == 130
    finally:
        command.kill()
        os.close(terminal)
    assert longboat.log() == "up\nsaved\n"


def drained(fd: int) -> bool:
    """A terminal that nobody reads would hold the viewer up."""
    try:
        while os.read(fd, 65536):
            pass
    except OSError:
        pass
    return False


def test_a_stop_before_any_rank_runs_ends_the_run_too(longboat: Place) -> None:
    command = longboat.start("stages:\n  a: {run: sleep 600}\n  b: {run: sleep 600, after: a}\n")
    until(lambda: longboat.events("run.started"))
    command.signal(signal.SIGTERM)
    assert command.said().code == 130
    assert longboat.events("run.ended")[0]["state"] == "stopped"


def test_longboat_stop_ends_a_run_from_another_terminal_and_says_who_asked(longboat: Place) -> None:
    command = longboat.start("run: [python, work.py]\n", work=POLITE)
    longboat.printed("up")
    said = longboat("stop", longboat.id)
    assert said.code == 0
    assert said.err.startswith(f"{longboat.id} has ended\n")
    assert command.said().code == 130
    assert longboat.cause["message"] == "stopped by longboat stop"
    again = longboat("stop", longboat.id)
    assert (again.code, again.err) == (0, f"{longboat.id} is not running: stopped\n")


def test_from_inside_a_rank_nobody_is_signalled_because_the_driver_has_no_number_there(longboat: Place) -> None:
    command = longboat.start("run: [python, work.py]\n", work=POLITE)
    longboat.printed("up")
    if longboat.events("run.started")[0]["contained"] == "pid namespace":
        said = longboat("exec", longboat.id, "--", *longboat.python, "-m", "longboat", "stop", longboat.id)
        assert said.code == 2
        assert f"{longboat.id} is driven from another PID namespace" in said.err
        assert longboat.status()["state"] == "running"
    assert longboat("stop", longboat.id).code == 0
    assert command.said().code == 130
    assert longboat.log() == "up\nsaved\n"


def test_ctrl_c_while_packages_are_installed_stops_the_run(longboat: Place) -> None:
    (longboat.code / "env/bin").mkdir(parents=True)
    longboat.file("env/bin/python", "#!/bin/sh\ntouch asked\nexec sleep 600\n").chmod(0o755)
    command = longboat.start("run: 'true'\npython: env\nrequirements: [nothing]\n")
    until((longboat.code / "asked").exists)
    command.signal(signal.SIGINT)
    said = command.said()
    assert said.code == 130, said
    assert longboat.status()["state"] == "stopped"
    assert "was stopped by Ctrl-C" in said.err


def test_a_run_whose_directory_is_removed_ends_and_says_so(longboat: Place) -> None:
    command = longboat.start("run: sleep 600\n")
    until(lambda: longboat.events("rank.started"))
    directory = longboat.dir

    def removed() -> bool:
        shutil.rmtree(directory, ignore_errors=True)  # something may be written into it just then
        return not os.path.exists(directory)

    until(removed)
    said = command.said()
    assert said.code == 2
    assert f"{directory} was removed while the run was under way; its ranks were ended" in said.err


def test_longboat_stop_now_does_not_wait_for_the_grace(longboat: Place) -> None:
    command = longboat.start("run: [python, work.py]\ngrace: 3000\n", work=STUBBORN)
    longboat.printed("up")
    assert longboat("stop", "--now").code == 0
    assert command.said().code == 130
    assert longboat.log() == "up\n"


def test_a_stop_that_is_waited_for_in_vain_says_so(longboat: Place) -> None:
    command = longboat.start("run: [python, work.py]\ngrace: 3000\n", work=STUBBORN)
    longboat.printed("up")
    said = longboat("stop", "--timeout", "0.3")
    assert said.code == 1
    assert said.err == f"error: {longboat.id} has not ended within 0.3s\n\nhint: longboat stop --now {longboat.id}\n"
    assert longboat("stop", "--now").code == 0
    assert command.said().code == 130


def test_a_closed_terminal_stops_the_run(longboat: Place) -> None:
    command = longboat.start("run: [python, work.py]\n", work=POLITE)
    longboat.printed("up")
    command.signal(signal.SIGHUP)
    command.process.wait(PATIENCE)
    until(lambda: longboat.events("run.ended"))
    assert longboat.log() == "up\nsaved\n"


def test_the_run_goes_on_when_nobody_reads_what_it_shows(longboat: Place) -> None:
    """The reader of a pipe goes away in the middle."""
    script = """
        import os, time
        print("up", flush=True)
        while not os.path.exists("go"):
            time.sleep(0.005)
        print("x" * 100000, flush=True)
    """
    job = longboat.job("run: [python, work.py]\n", work=script)
    command = subprocess.Popen(
        [sys.executable, "-m", "longboat", "run", job, "--json"],
        env=longboat.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    longboat.printed("up")
    assert command.stdout is not None
    command.stdout.close()
    longboat.file("go", "")
    assert command.wait(PATIENCE) == 0
    assert longboat.events("run.ended")[0]["state"] == "succeeded"


SAVING = """
import os, signal, sys, time
def save(*_):
    print("saving", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.005)
    print("saved", flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
while True:
    time.sleep(0.01)
"""


def test_a_stop_that_is_asked_for_twice_still_leaves_the_ranks_their_grace(longboat: Place) -> None:
    command = longboat.start("run: [python, work.py]\ngrace: 60\n", work=SAVING)
    longboat.printed("up")
    assert longboat("stop", "--no-wait").code == 0
    longboat.printed("saving")
    assert longboat("stop", "--no-wait").code == 0
    until(lambda: len(longboat.events("stopping")) == 2, "the second request")
    longboat.file("go", "")
    assert command.said().code == 130
    assert longboat.log() == "up\nsaving\nsaved\n"
    assert [event["now"] for event in longboat.events("stopping")] == [False, False]


SHARED = """
import os, select, signal, sys
from types import SimpleNamespace
from tests.hasty import signal_children_as_they_begin
from longboat.cli.run_viewer import RunViewer
from longboat.cli.console import Console
from longboat.runtime.driver.stop_signals import StopSignals

signal_children_as_they_begin(signal.SIGINT)
signals = StopSignals(leave_on_term=False)
viewer = RunViewer(SimpleNamespace(after=0), Console(), json=False, quiet=False, commands=[])
viewer.open(lambda: None)
viewer.wait()
print("heard" if select.select([signals.fileno()], [], [], 0)[0] else "not heard")
os.kill(os.getpid(), signal.SIGINT)
print(signals.received() == [signal.SIGINT])
"""


def test_a_ctrl_c_that_the_viewer_hears_as_it_begins_does_not_count_for_the_driver_too() -> None:
    """The driver hears it itself, and of the second one it would kill at once."""
    done = subprocess.run([sys.executable, "-c", SHARED], capture_output=True, text=True, check=True)
    assert done.stdout == "not heard\nTrue\n", done.stderr
