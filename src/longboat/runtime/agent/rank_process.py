"""One life of the user's process: start it, see it end, end it and everything it started.

The process writes straight to its append-only log file: nothing stands between its write(2) and
the file, so nothing can be lost. It leads a session of its own. When its first process has
ended, what it left running is ended too, sessions of their own included: the agent is the
subreaper, so they cannot slip away.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from typing import Dict, List, Optional, Sequence, Tuple

from longboat.runtime.agent import syscalls


class ProgramNotFound(Exception):
    """A program that the command needs is not there."""

    def __init__(self, message: str, looked_in: Sequence[str]) -> None:
        super().__init__(message)
        self.facts = (f"looked in {', '.join(looked_in)}",)


class CannotStart(Exception):
    """The command could not be executed: `errno` and what was being done tell why."""

    def __init__(self, error: int, doing: str, path: str, cwd: str) -> None:
        super().__init__(f"{doing} {path}: {os.strerror(error)}")
        self.error = error
        self.doing = doing
        self.path = path
        self.cwd = cwd


class RankProcess:
    def __init__(self, command: Sequence[str], env: Dict[str, str], cwd: str, log: str) -> None:
        os.makedirs(os.path.dirname(log), exist_ok=True)
        fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self.log_offset = os.fstat(fd).st_size
            self.pid, self.outside_pid = _spawn(command, env, cwd, fd)
        finally:
            os.close(fd)
        self._first_result: Optional[Tuple[int, int]] = None
        self._kill_at: Optional[float] = None
        self._told = False
        self.asked = False
        """Somebody told us to end it, and it had not ended by itself."""

    def ended(self) -> Optional[Tuple[int, int]]:
        """(exit code, signal) once the process and all it started are gone; the other is -1 or 0."""
        if self._all_gone():
            return self._first_result
        if self._first_result is not None and not self._has_grace:
            syscalls.signal_all(syscalls.descendants(os.getpid()), signal.SIGKILL)
        return None

    def _all_gone(self) -> bool:
        """Takes note of all that has ended; whether nothing is left."""
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
        """Told to end and given time for it: a shell dies of SIGTERM at once, the program that it started
        may still be saving."""
        return self._told and self._kill_at is not None and time.monotonic() < self._kill_at

    def wait(self) -> Tuple[int, int]:
        """Blocks until the end."""
        while True:
            result = self.ended()
            if result is not None:
                return result
            signal.sigtimedwait((signal.SIGCHLD,), 0.05)

    def end(self, grace: float) -> None:
        """SIGTERM now and SIGKILL after the grace, or SIGKILL now. A peer may have heard of its end before we
        have: the kernel closes its connections first."""
        if self._all_gone():
            return
        self.asked = self.asked or self._first_result is None
        if grace > 0:
            if not self._told:
                self._told = True
                syscalls.ask_to_end(self.pid)
            due = time.monotonic() + grace
            self._kill_at = due if self._kill_at is None else min(self._kill_at, due)
        else:
            self._kill_at = time.monotonic()
        self.enforce()

    def expire(self, seconds: float) -> None:
        """SIGKILL after so long, though nobody has asked for its end: a part of it has failed."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + seconds

    def enforce(self) -> None:
        """Kills once the grace is over; call it now and then."""
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
            syscalls.signal_all(syscalls.descendants(os.getpid()), signal.SIGKILL)


def _spawn(command: Sequence[str], env: Dict[str, str], cwd: str, log: int) -> Tuple[int, int]:
    """fork and exec by hand: the agent has one thread, and importing subprocess costs more than this.
    Gives the process's number here and outside of a PID namespace."""
    reader, writer = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        doing = ["start"]
        try:
            os.write(writer, f"{syscalls.outside_pid()}\n".encode())
            _become(command, env, cwd, log, parent, doing)
        except OSError as error:
            os.write(writer, f"{error.errno}\n{doing[0]}".encode())
        finally:
            os._exit(127)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        outside, _, failure = pipe.read().decode().partition("\n")
    if failure:
        os.waitpid(pid, 0)
        number, _, what = failure.partition("\n")
        path = cwd if what == "enter the directory" else command[0]
        raise CannotStart(int(number), what, path, cwd)
    return pid, int(outside or 0)


def _become(command: Sequence[str], env: Dict[str, str], cwd: str, log: int, parent: int, doing: List[str]) -> None:
    os.setsid()
    syscalls.die_with_parent(parent)
    # Python itself ignores SIGPIPE and SIGXFSZ, and who started us may ignore others: a program expects to be told.
    for signum in range(1, 32):
        if signum not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    doing[0] = "enter the directory"
    os.chdir(cwd)
    doing[0] = "execute"
    words, variables = [_encoded(word) for word in command], {_encoded(n): _encoded(v) for n, v in env.items()}
    if "/" in command[0]:
        os.execve(command[0], words, variables)
    seen = errno.ENOENT
    for directory in env.get("PATH", os.defpath).split(":"):
        try:
            os.execve(os.path.join(directory or ".", command[0]), words, variables)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                seen = error.errno or seen
    raise OSError(seen, os.strerror(seen))


def _encoded(text: str) -> bytes:
    """As the locale writes it, or in UTF-8 where it has no such characters: a job file has them all."""
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape")
