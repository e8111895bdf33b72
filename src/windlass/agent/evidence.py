"""From how a process ended, and what it left, to a cause: one table, and the facts beside it.

Nothing is guessed: a SIGKILL is an out-of-memory kill only if a counter of the kernel rose
while the rank ran; else it is what it is, a signal of unknown origin.

Ships into strangers' images: standard library only, Python 3.9.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from typing import List, Optional, Sequence, Tuple

from windlass.agent.process import CannotStart
from windlass.causes import Cause, Kind

TAIL_BYTES = 64 * 1024
TAIL_LINES = 20
LINE_MOST = 500
LEAST_FREE = 128 * 1024
"""Bytes; with less left on its disk a run cannot go on."""
NEARLY_FULL = 2 * 1024 * 1024
"""Bytes; with more left, a log that speaks of a full disk means another one."""

_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$')
_ERROR = re.compile(
    r"^(?P<error>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Fault)\b.*|[A-Za-z_][\w.]+: .*)$"
)
_LIBRARY = re.compile(r"^<frozen |/site-packages/|/dist-packages/|/lib/python\d")
_FATAL = frozenset(
    int(number)
    for number in (
        signal.SIGKILL,
        signal.SIGSEGV,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGILL,
        signal.SIGFPE,
        signal.SIGTERM,
        signal.SIGSYS,
    )
)
"""Signals that a shell is believed about when it exits with 128 and their number."""

TEXTS: Tuple[Tuple[Kind, Tuple[str, ...]], ...] = (
    (Kind.MPI_MISMATCH, ("windlass: mpi mismatch",)),
    (Kind.DISK_FULL, ("No space left on device", "Errno 28", "Disk quota exceeded")),
    (
        Kind.LOST_RENDEZVOUS,
        (
            "Connection reset by peer",
            "Connection closed by peer",
            "Connection closed by remote peer",
            "Socket closed",
            "ConnectionResetError",
            "BrokenPipeError",
            "The tasks have crashed",
            "peer closed",
        ),
    ),
)
"""What a log's end says, by itself, about a failed process; the first that fits wins. Only words
that a healthy peer would not print."""


def tail(path: str, start: int, end: Optional[int] = None) -> List[str]:
    """The last lines written between two offsets of a log, whatever bytes they hold."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END) if end is None else end
            begin = max(start, size - TAIL_BYTES)
            file.seek(begin)
            data = file.read(size - begin)
    except OSError:
        return []
    text = data.decode("utf-8", "replace").replace("\0", "\\0")
    lines = [line.split("\r")[-1] or line.strip("\r") for line in text.splitlines() if line.strip()]
    return [line if len(line) <= LINE_MOST else line[:LINE_MOST] + " ..." for line in lines[-TAIL_LINES:]]


def last_frame(lines: Sequence[str]) -> Tuple[str, str]:
    """(`file:line in function`, `SomeError: text`) of the last traceback; empty when there is none.
    The frame is the innermost one of the user's own code, if any is."""
    begin = max((i for i, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")), default=-1)
    frame = own = error = ""
    for line in lines[begin + 1 :] if begin >= 0 else lines:
        match = _FRAME.match(line)
        if match:
            name = match.group("name")
            frame = f"{match.group('file')}:{match.group('line')}" + (f" in {name}" if name else "")
            own = own if _LIBRARY.search(match.group("file")) else frame
            error = ""
        elif frame and not line.startswith(" ") and not error and _ERROR.match(line):
            error = line
    return (own or frame, error) if frame and error else ("", "")


def of_exit(code: int, signum: int, lines: Sequence[str], oom_kills: int, asked: bool, run_dir: str) -> Optional[Cause]:
    """Why a process that ended like this ended; None for a clean end."""
    if code == 0:
        return None
    frame, error = last_frame(lines)
    text = "\n".join(lines[-8:])
    named = next((kind for kind, words in TEXTS if any(word in text for word in words)), None)
    if named is Kind.DISK_FULL and _free(run_dir) >= NEARLY_FULL:
        named = None
    reported = code - 128 if not signum and code - 128 in _FATAL and not error else 0
    if signum or reported:
        kind, message, facts = _of_signal(signum or reported, oom_kills, asked)
        if reported:
            facts = (*facts, f"exit code {code}: how a shell reports a command that signal {reported} ended")
    elif code == 127 and _shell_says(lines, "not found"):
        kind, message, facts = Kind.NOT_FOUND, _last(lines), ("exit code 127: the shell did not find the command",)
    elif code == 126 and _shell_says(lines, "ermission denied"):
        kind, message, facts = Kind.NOT_EXECUTABLE, _last(lines), ("exit code 126: the shell may not execute it",)
    elif oom_kills > 0:
        kind, message = Kind.OUT_OF_MEMORY, "a process of the rank was killed for lack of memory"
        facts = (f"the kernel counted {oom_kills} out-of-memory kill(s) in the rank's cgroup while it ran",)
    elif named is None and _free(run_dir) < LEAST_FREE:
        kind, message = Kind.DISK_FULL, f"the disk of {run_dir} is full"  # so full that the log cannot tell
        facts = (f"{_free(run_dir)} bytes are free where the run is kept", f"exit code {code}")
    elif named is not None:
        kind, message, facts = named, error or _last(lines), (f"exit code {code}",)
    else:
        kind, message, facts = Kind.USER_ERROR, error or f"exited with code {code}", ()
    return Cause(
        kind,
        message,
        exit_code=code,
        signal=signum or reported,
        frame=frame,
        error=error,
        lines=tuple(lines),
        evidence=facts,
    )


def of_start(failure: CannotStart, path: str) -> Cause:
    """Why a command could not even be started."""
    kinds = {errno.ENOENT: Kind.NOT_FOUND, errno.EACCES: Kind.NOT_EXECUTABLE, errno.ENOEXEC: Kind.NOT_EXECUTABLE}
    kind = kinds.get(failure.error, Kind.INTERNAL)
    facts = [f"{failure.doing} {failure.path}: {os.strerror(failure.error)}"]
    if failure.doing == "enter the directory":
        return Cause(Kind.MISSING_INPUT, f"the code directory {failure.path} cannot be entered", evidence=tuple(facts))
    if kind is Kind.NOT_FOUND:
        message = f"the command {failure.path} was not found"
        facts.append(f"looked for it {'as given' if '/' in failure.path else f'on PATH={path}'}")
        if os.path.exists(failure.path):
            message = f"the interpreter that {failure.path} names in its first line was not found"
    elif kind is Kind.NOT_EXECUTABLE:
        message = f"the file {failure.path} may not be executed"
        facts.append(f"fix: chmod +x {failure.path}, or name its interpreter in `run:`")
    else:
        message = str(failure)
    return Cause(kind, message, evidence=tuple(facts))


def oom_kills() -> int:
    """How many processes of this cgroup the kernel has killed for memory; -1 when it does not tell."""
    for path in _oom_files():
        try:
            with open(path) as file:
                for line in file:
                    name, _, value = line.partition(" ")
                    if name == "oom_kill":
                        return int(value)
        except (OSError, ValueError):
            continue
    return -1


def _oom_files() -> List[str]:
    try:
        with open("/proc/self/cgroup") as file:
            entries = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    found = []
    for entry in entries:
        if len(entry) != 3:
            continue
        _, controllers, path = entry
        if controllers == "":
            found += [f"/sys/fs/cgroup{path}/memory.events", "/sys/fs/cgroup/memory.events"]
        elif "memory" in controllers.split(","):
            found += [f"/sys/fs/cgroup/memory{path}/memory.oom_control", "/sys/fs/cgroup/memory/memory.oom_control"]
    return found


def _of_signal(signum: int, oom: int, asked: bool) -> Tuple[Kind, str, Tuple[str, ...]]:
    name = signal_name(signum)
    if signum == signal.SIGKILL and oom > 0:
        fact = f"the kernel counted {oom} out-of-memory kill(s) in the rank's cgroup while it ran"
        return Kind.OUT_OF_MEMORY, "killed by the kernel for lack of memory", (fact,)
    if signum == signal.SIGKILL and not asked:
        told = (
            "no out-of-memory kill was counted"
            if oom == 0
            else "the kernel's out-of-memory counter cannot be read here"
        )
        return Kind.KILLED, f"killed by signal {signum} ({name}), sender unknown", (told,)
    return Kind.KILLED, f"ended by signal {signum} ({name})", ()


def signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def _shell_says(lines: Sequence[str], words: str) -> bool:
    return bool(lines) and words in lines[-1]


def _last(lines: Sequence[str]) -> str:
    return lines[-1] if lines else ""


def _free(directory: str) -> int:
    try:
        found = os.statvfs(directory)
    except OSError:
        return NEARLY_FULL
    return found.f_bavail * found.f_frsize
