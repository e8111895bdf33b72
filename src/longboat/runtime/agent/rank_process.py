"""The user's process of one incarnation: start it, wait for its end, stop it with everything it started.

The process writes straight to its append-only log file, so no output can be lost on the way. It leads its
own session. When it has ended, what it left running is killed too, including processes in sessions of
their own: the agent is their subreaper, so they cannot escape.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from enum import Enum
from typing import Dict, List, Optional, Sequence, Tuple

from longboat.runtime.agent import syscalls
from longboat.runtime.rank_env import with_pid


class ProgramNotFound(Exception):
    """A program that the command needs does not exist."""

    def __init__(self, message: str, looked_in: Sequence[str]) -> None:
        super().__init__(message)
        self.facts = (f"looked in {', '.join(looked_in)}",)


class StartStep(Enum):
    """Steps on the way to a running command; the value is for messages."""

    START = "start"
    ENTER_DIRECTORY = "enter the directory"
    EXECUTE = "execute"


class CannotStart(Exception):
    """The command could not be executed; `error` is the errno, `doing` the failed step."""

    def __init__(self, error: int, doing: StartStep, path: str, cwd: str) -> None:
        super().__init__(f"{doing.value} {path}: {os.strerror(error)}")
        self.error = error
        self.doing = doing
        self.path = path
        self.cwd = cwd


def open_log(path: str) -> int:
    """Open a rank's log for appending. An incarnation that was killed while it wrote may have left half a line:
    end it, so that the next one starts with a line of its own."""
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    size = os.fstat(fd).st_size
    if size and os.pread(fd, 1, size - 1) != b"\n":
        os.write(fd, b"\n")
    return fd


class RankProcess:
    """The user's process and everything it started."""

    def __init__(self, command: Sequence[str], env: Dict[str, str], cwd: str, log: str) -> None:
        os.makedirs(os.path.dirname(log), exist_ok=True)
        fd = open_log(log)
        try:
            self.log_offset = os.fstat(fd).st_size
            self.pid, self.outside_pid = _spawn(command, env, cwd, fd)
        finally:
            os.close(fd)
        self._first_result: Optional[Tuple[int, int]] = None
        self._kill_at: Optional[float] = None
        self._sigterm_sent = False
        self.asked = False
        """It was stopped on order, and had not ended by itself before."""

    @property
    def killed(self) -> bool:
        """It was stopped on order, without time to end by itself."""
        return self.asked and not self._sigterm_sent

    def ended(self) -> Optional[Tuple[int, int]]:
        """(exit code, signal) once the process and everything it started are gone; unused: -1 and 0."""
        if self._all_gone():
            return self._first_result
        if self._first_result is not None and not self._has_grace:
            syscalls.signal_all(syscalls.descendants(os.getpid()), signal.SIGKILL)
        return None

    def _all_gone(self) -> bool:
        """Collect ended processes; returns whether none is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self.pid:
                signalled = os.WIFSIGNALED(status)
                self._first_result = (-1, os.WTERMSIG(status)) if signalled else (os.WEXITSTATUS(status), 0)

    @property
    def _has_grace(self) -> bool:
        """SIGTERM is sent and the grace period runs: a shell dies of SIGTERM at once, but the program that it
        started may still be saving."""
        return self._sigterm_sent and self._kill_at is not None and time.monotonic() < self._kill_at

    def wait(self) -> Tuple[int, int]:
        """Block until it has ended."""
        while True:
            result = self.ended()
            if result is not None:
                return result
            signal.sigtimedwait((signal.SIGCHLD,), 0.05)

    def end(self, grace: float) -> None:
        """Send SIGTERM now and SIGKILL after the grace period, or SIGKILL now. Checks first whether it has ended:
        peers can notice that before we do, because the kernel closes its connections first."""
        if self._all_gone():
            return
        self.asked = self.asked or self._first_result is None
        if grace > 0:
            if not self._sigterm_sent:
                self._sigterm_sent = True
                syscalls.ask_to_end(self.pid)
            due = time.monotonic() + grace
            self._kill_at = due if self._kill_at is None else min(self._kill_at, due)
        else:
            self._kill_at = time.monotonic()
        self.enforce()

    def expire(self, seconds: float) -> None:
        """Send SIGKILL after some seconds without an order: a part of it has failed."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + seconds

    def enforce(self) -> None:
        """Kill once the grace period is over; call it regularly."""
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
            syscalls.signal_all(syscalls.descendants(os.getpid()), signal.SIGKILL)


def _spawn(command: Sequence[str], env: Dict[str, str], cwd: str, log: int) -> Tuple[int, int]:
    """Fork and exec by hand: the agent has one thread, and importing subprocess takes longer than this. Returns
    the pid here and outside of the PID namespace."""
    reader, writer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        doing = [StartStep.START]
        try:
            os.write(writer, f"{syscalls.outside_pid()}\n".encode())
            _become(command, env, cwd, log, parent, doing)
        except OSError as error:
            os.write(writer, f"{error.errno}\n{doing[0].value}".encode())
        finally:
            os._exit(127)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        outside, _, failure = pipe.read().decode().partition("\n")
    if failure:
        os.waitpid(pid, 0)
        number, _, value = failure.partition("\n")
        step = StartStep(value)
        path = cwd if step is StartStep.ENTER_DIRECTORY else command[0]
        raise CannotStart(int(number), step, path, cwd)
    return pid, int(outside or 0)


def _become(
    command: Sequence[str], env: Dict[str, str], cwd: str, log: int, parent: int, doing: List[StartStep]
) -> None:
    os.setsid()
    syscalls.die_with_parent(parent)
    # Python ignores SIGPIPE and SIGXFSZ, and our parent may ignore others: programs expect the defaults.
    for signum in range(1, 32):
        if signum not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    doing[0] = StartStep.ENTER_DIRECTORY
    os.chdir(cwd)
    doing[0] = StartStep.EXECUTE
    arguments = [_encoded(text) for text in command]
    variables = {_encoded(n): _encoded(v) for n, v in with_pid(env, command, os.getpid()).items()}
    if "/" in command[0]:
        os.execve(command[0], arguments, variables)
    seen = errno.ENOENT
    for directory in env.get("PATH", os.defpath).split(":"):
        try:
            os.execve(os.path.join(directory or ".", command[0]), arguments, variables)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                seen = error.errno or seen
    raise OSError(seen, os.strerror(seen))


def _encoded(text: str) -> bytes:
    """Encode as the locale does, or as UTF-8 if the locale lacks a character: job files may contain any."""
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape")
