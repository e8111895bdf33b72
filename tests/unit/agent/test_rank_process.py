"""One life of a user's process, with real processes. A child adopts and reaps, as the agent does."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from longboat.runtime.agent import mpi_remote, syscalls
from longboat.runtime.agent.rank_process import CannotStart, RankProcess, StartStep
from tests.ports import free_port

pytestmark = pytest.mark.filterwarnings("ignore:os.fork.* was called:RuntimeWarning")
"""Another test may have brought JAX's threads into this process; the forks here run none of it."""

ENV = {"PATH": os.environ["PATH"]}


def inside(work: Callable[[], None]) -> None:
    """Runs the work in a forked process, which may adopt and reap without touching this one's children."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            syscalls.adopt_orphans()
            work()
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode()[:60000] or b"failed")
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        failure = pipe.read()
    os.waitpid(pid, 0)
    assert not failure, failure


def finished(process: RankProcess) -> tuple[int, int]:
    due = time.monotonic() + 60
    while (result := process.ended()) is None:
        assert time.monotonic() < due
        process.enforce()
        time.sleep(0.002)
    return result


def waits(path: Path, words: str) -> None:
    due = time.monotonic() + 60
    while not path.exists() or words not in path.read_text():
        assert time.monotonic() < due, words
        time.sleep(0.002)


def becomes(pid: int, state: str) -> None:
    """Waits until the kernel says so: T is stopped, Z has ended and nobody has asked how."""
    due = time.monotonic() + 60
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != state:
        assert time.monotonic() < due, state
        time.sleep(0.002)


def test_it_writes_straight_to_its_log_behind_what_is_there(tmp_path: Path) -> None:
    log = tmp_path / "logs/a.log"
    log.parent.mkdir()
    log.write_text("before\n")

    def work() -> None:
        process = RankProcess(["sh", "-c", "echo out; echo err >&2; pwd; exit 3"], ENV, str(tmp_path), str(log))
        assert process.log_offset == 7
        assert finished(process) == (3, 0)

    inside(work)
    assert log.read_text() == f"before\nout\nerr\n{tmp_path}\n"


def test_a_signal_is_told_apart_from_an_exit_code(tmp_path: Path) -> None:
    def work() -> None:
        process = RankProcess(["sh", "-c", "kill -11 $$"], ENV, "/", str(tmp_path / "log"))
        assert finished(process) == (-1, signal.SIGSEGV)
        assert not process.asked

    inside(work)


def test_it_leads_a_session_of_its_own_with_the_signals_as_a_shell_would_set_them(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; assert os.getsid(0) == os.getpid() == os.getpgrp();"
        "assert signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL;"
        "assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()); assert sys.stdin.read() == '';"
        "print(*os.listdir('/proc/self/fd'))"
    )
    handed_down = {fd for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2 and _inheritable(fd)}

    def work() -> None:
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1,))
        assert finished(RankProcess([sys.executable, "-c", code], ENV, "/", str(tmp_path / "log"))) == (0, 0)

    inside(work)
    has = {int(word) for word in (tmp_path / "log").read_text().split()} - handed_down
    assert has - {0, 1, 2} == {max(has)}, "its three streams, and the directory that it looks at"


def _inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


def test_what_it_leaves_running_is_ended_with_it_sessions_of_their_own_included(tmp_path: Path) -> None:
    script = "setsid sleep 600 & (sleep 601 &) ; setsid sh -c 'sleep 602 & sleep 603' & echo up"

    def work() -> None:
        assert finished(RankProcess(["sh", "-c", script], ENV, "/", str(tmp_path / "log"))) == (0, 0)
        assert syscalls.descendants(os.getpid()) == []

    inside(work)


def test_it_is_asked_once_and_killed_when_the_grace_is_over(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = "trap 'echo asked' TERM; echo up; while :; do sleep 0.01; done"

    def work() -> None:
        process = RankProcess(["sh", "-c", script], ENV, "/", str(log))
        waits(log, "up")
        process.end(600)
        waits(log, "asked")
        process.end(600)
        process.end(300)
        assert process.ended() is None
        process.end(0)
        assert finished(process) == (-1, signal.SIGKILL)
        assert process.asked

    inside(work)
    assert log.read_text().count("asked") == 1


SAVING = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
print("up", flush=True)
while "asked" not in open(sys.argv[1]).read():
    time.sleep(0.01)
time.sleep(0.5)  # saves
print("saved", flush=True)
"""


def standing(directory: Path, log: Path, command: list[str]) -> list[str]:
    """The command under what stands between mpirun and it in a worker's pod."""
    settings = {"env": ENV, "size": 1, "log": str(log), "cwd": str(directory)}
    mpi_remote.prepare(str(directory / "mpi"), settings)
    return [str(directory / "mpi" / mpi_remote.RUN_RANK), *command]


@pytest.mark.parametrize("between", ["a bucket", "mpirun's daemon", "mpirun's daemon and a bucket"])
def test_it_is_asked_once_whatever_stands_between(tmp_path: Path, between: str) -> None:
    log = tmp_path / "log"

    def work() -> None:
        command = [sys.executable, "-c", SAVING, str(log)]
        if "bucket" in between:
            command = [sys.executable, "-m", "longboat.runtime.buckets", "--", *command]
        if "daemon" in between:
            command = standing(tmp_path, log, command)
        process = RankProcess(command, ENV, "/", str(log))
        waits(log, "up")
        process.end(grace=20)
        assert finished(process) == (0, 0)

    inside(work)
    assert log.read_text() == "up\nasked\nsaved\n"


@pytest.mark.parametrize("bucket", [False, True])
def test_what_mpirun_alone_asks_is_passed_on_once(tmp_path: Path, bucket: bool) -> None:
    """One of its processes has failed elsewhere: only what it started itself hears of it, now and then twice."""
    log = tmp_path / "log"

    def work() -> None:
        command = [sys.executable, "-c", SAVING, str(log)]
        if bucket:
            command = [sys.executable, "-m", "longboat.runtime.buckets", "--", *command]
        process = RankProcess(standing(tmp_path, log, command), ENV, "/", str(log))
        waits(log, "up")
        os.killpg(process.pid, signal.SIGTERM)
        waits(log, "asked")
        os.kill(process.pid, signal.SIGTERM)
        assert finished(process) == (0, 0)

    inside(work)
    assert log.read_text() == "up\nasked\nsaved\n"


def test_mpirun_reaches_a_worker_with_the_token_of_the_run_alone(tmp_path: Path) -> None:
    """The remote shell proves itself to the worker; its output and exit code come back."""
    port, log = free_port(), tmp_path / "log"
    log.touch()
    settings = {"port": port, "ports": {"127.0.0.1": port}, "token": "aa", "log": str(log), "begins": 0}
    mpi_remote.prepare(str(tmp_path / "mpi"), settings)
    mpi_remote.prepare(str(tmp_path / "stranger"), {**settings, "token": "bb"})
    shell = [
        str(tmp_path / "mpi" / mpi_remote.REMOTE_SHELL),
        "-x",
        "127.0.0.1",
        f"echo here; echo 5 > {tmp_path}/mpi/exit; exit 3",
    ]
    worker = subprocess.Popen([*mpi_remote.PROGRAM, mpi_remote.NAME, str(tmp_path / "mpi")])
    stranger = subprocess.Popen([str(tmp_path / "stranger" / mpi_remote.REMOTE_SHELL), "127.0.0.1", "echo never"])
    try:
        answered = subprocess.run(shell, capture_output=True, text=True, timeout=120, check=False)
        assert (answered.returncode, answered.stdout) == (3, "here\n")
        assert worker.wait(120) == 5, "it exits like its rank"
    finally:
        stranger.kill()
        stranger.wait()
        worker.kill()
        worker.wait()


def test_a_stopped_process_hears_the_request_too(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def work() -> None:
        process = RankProcess(
            ["sh", "-c", "trap 'echo asked; exit 0' TERM; echo up; kill -STOP $$; :"], ENV, "/", str(log)
        )
        becomes(process.pid, "T")
        process.end(600)
        assert finished(process) == (0, 0)

    inside(work)
    assert log.read_text() == "up\nasked\n"


@pytest.mark.parametrize("grace", [0, 600])
def test_one_that_had_died_before_its_end_was_asked_for_died_by_itself(tmp_path: Path, grace: float) -> None:
    def work() -> None:
        process = RankProcess(["sleep", "600"], ENV, "/", str(tmp_path / "log"))
        os.kill(process.pid, signal.SIGKILL)
        becomes(process.pid, "Z")
        process.end(grace)
        assert finished(process) == (-1, signal.SIGKILL)
        assert not process.asked

    inside(work)


def test_what_it_left_running_is_ended_on_request_and_its_own_end_stays_its_own(tmp_path: Path) -> None:
    def work() -> None:
        process = RankProcess(["sh", "-c", "sleep 600 & exit 3"], ENV, "/", str(tmp_path / "log"))
        becomes(process.pid, "Z")
        process.end(0)
        assert finished(process) == (3, 0)
        assert not process.asked

    inside(work)


def test_an_end_that_nobody_asked_for_can_be_set(tmp_path: Path) -> None:
    def work() -> None:
        process = RankProcess(["sleep", "600"], ENV, "/", str(tmp_path / "log"))
        process.expire(0.01)
        assert finished(process) == (-1, signal.SIGKILL)
        assert not process.asked

    inside(work)


def test_it_dies_with_its_agent(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def work() -> None:
        reader, writer = os.pipe()
        if (agent := os.fork()) == 0:
            process = RankProcess(["sleep", "600"], ENV, "/", str(log))
            os.write(writer, str(process.pid).encode())
            signal.pause()
        rank = int(os.read(reader, 20))
        os.kill(agent, signal.SIGKILL)
        os.waitpid(agent, 0)
        assert os.waitpid(rank, 0)[0] == rank, "adopted, and dead by its parent-death signal"

    inside(work)


@pytest.mark.parametrize(
    ("command", "cwd", "error", "doing"),
    [
        (["no-such-program"], "/", errno.ENOENT, StartStep.EXECUTE),
        (["/no/such/program"], "/", errno.ENOENT, StartStep.EXECUTE),
        (["/etc/passwd"], "/", errno.EACCES, StartStep.EXECUTE),
        (["true"], "/no/such/directory", errno.ENOENT, StartStep.ENTER_DIRECTORY),
    ],
)
def test_a_command_that_cannot_be_executed_says_why(
    tmp_path: Path, command: list[str], cwd: str, error: int, doing: StartStep
) -> None:
    def work() -> None:
        with pytest.raises(CannotStart) as caught:
            RankProcess(command, ENV, cwd, str(tmp_path / "log"))
        assert (caught.value.error, caught.value.doing) == (error, doing)
        with pytest.raises(ChildProcessError):
            os.wait()

    inside(work)


def test_a_file_on_the_path_that_may_not_be_executed_does_not_hide_one_that_may(tmp_path: Path) -> None:
    (tmp_path / "true").write_text("")

    def work() -> None:
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        assert finished(RankProcess(["true"], env, "/", str(tmp_path / "log"))) == (0, 0)

    inside(work)


def test_waiting_blocks_until_the_end(tmp_path: Path) -> None:
    def work() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
        assert RankProcess(["sh", "-c", "sleep 0.05; exit 4"], ENV, "/", str(tmp_path / "log")).wait() == (4, 0)

    inside(work)


def test_a_process_starts_a_line_of_its_own_after_half_a_line_of_a_killed_one(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def work() -> None:
        for text in ("half", "half", "whole\\n", "after"):
            process = RankProcess(["printf", text], ENV, str(tmp_path), str(log))
            assert log.read_bytes()[: process.log_offset][-1:] in (b"", b"\n")
            finished(process)

    inside(work)
    assert log.read_text() == "half\nhalf\nwhole\nafter"
