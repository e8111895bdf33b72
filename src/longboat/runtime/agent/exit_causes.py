"""From how a process ended, and what it left, to a cause: one table, and the facts beside it.

Nothing is guessed: a SIGKILL is an out-of-memory kill only if a counter of the kernel rose
while the rank ran; else it is what it is, a signal of unknown origin.
"""

from __future__ import annotations

import errno
import os
import signal
from typing import List, NamedTuple, Optional, Sequence, Tuple

from longboat.runtime import run_layout
from longboat.runtime.agent import dns_check, syscalls, tracebacks
from longboat.runtime.agent.rank_process import CannotStart
from longboat.runtime.buckets.bucket_mounts import CANNOT, COMPLAINT, REFUSED
from longboat.runtime.causes import Cause, CauseKind, signal_name

TAIL_BYTES = 64 * 1024
TAIL_LINES = 20
LINE_MOST = 500
LITTLE = 15
"""Lines that may follow an error that ended a program: the rest of its text, and goodbyes."""
NO_LIMIT = 1 << 60
"""Bytes; how version 1 of cgroups says that there is no limit is larger."""
NEARLY_FULL = 2 * 1024 * 1024
"""Bytes; with more left, a log that speaks of a full disk means another one."""

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
_CRASHES = _FATAL - {int(signal.SIGKILL), int(signal.SIGTERM), int(signal.SIGSYS)}
"""Signals before which Python writes where it stands."""

TEXTS: Tuple[Tuple[CauseKind, Tuple[str, ...]], ...] = (
    (CauseKind.MPI_MISMATCH, ("longboat: mpi mismatch", "unsupported PMI version PMIx")),
    (CauseKind.DISK_FULL, ("No space left on device", "Errno 28", "Disk quota exceeded")),
    (CauseKind.NOT_WRITABLE, ("[Errno 30] Read-only file system",)),
    (
        CauseKind.NO_NAME,
        (
            "gaierror",
            "Name or service not known",
            "Temporary failure in name resolution",
            "Could not resolve host",
            "Name does not resolve",
        ),
    ),
    (
        CauseKind.LOST_RENDEZVOUS,
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
"""What the error of a failed process says, or the end of its log where it left no traceback; the
first that fits wins. Only words that a healthy peer would not print."""

ALLOCATIONS = ("MemoryError", "ArrayMemoryError", "OutOfMemoryError", "RESOURCE_EXHAUSTED: Out of memory")
"""Errors that say themselves that memory could not be had: the host's or an accelerator's."""


class ExitFinding(NamedTuple):
    kind: CauseKind
    message: str
    facts: Tuple[str, ...] = ()


def tail(path: str, start: int, end: Optional[int] = None) -> List[str]:
    """The lines at the end of what was written between two offsets of a log, whatever bytes they hold."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END) if end is None else end
            begin = max(start, size - TAIL_BYTES)
            file.seek(begin)
            data = file.read(size - begin)
    except OSError:
        return []
    text = data.decode("utf-8", "replace").replace("\0", "\\0")
    lines = [line.split("\r")[-1] or line.strip("\r") for line in text.split("\n") if line.strip()]
    return [line if len(line) <= LINE_MOST else line[:LINE_MOST] + " ..." for line in lines]


def kept(lines: Sequence[str]) -> Tuple[str, ...]:
    """As many of the last lines as a cause carries."""
    return tuple(lines[-TAIL_LINES:])


def of_exit(code: int, signum: int, lines: Sequence[str], oom_kills: int, asked: bool, run_dir: str) -> Optional[Cause]:
    """Why a process that ended like this ended; None for a clean end."""
    if code == 0:
        return None
    struck = signum or (code - 128 if code - 128 in _FATAL else 0)
    frame, error, facts = _error(code, struck, lines)
    reported = struck if not signum and (not error or error.startswith(tracebacks.FATAL)) else 0
    told = (
        _of_signal(signum or reported, oom_kills, asked)
        if signum or reported
        else _of_shell(code, lines)
        or _of_storage(code, lines)
        or _of_words(code, lines, error, oom_kills, run_dir)
        or ExitFinding(CauseKind.USER_ERROR, error or f"exited with code {code}", _as_whom(error))
    )
    if reported:
        facts = (f"exit code {code}: how a shell reports a command that signal {reported} ended", *facts)
    return Cause(
        told.kind,
        told.message,
        exit_code=code,
        signal=signum or reported,
        frame=frame,
        error=error,
        lines=kept(lines),
        evidence=(*told.facts, *facts),
    )


def _error(code: int, signum: int, lines: Sequence[str]) -> Tuple[str, str, Tuple[str, ...]]:
    """(frame, error, further facts) of the traceback that ended the process. Python ends with code 1
    after one, and little is printed behind it. Any other may be of something that the program had
    survived: it is evidence, not the error."""
    if signum in _CRASHES:
        frame, error = tracebacks.fatal(lines)
        if error:
            return frame, error, ()
    found = tracebacks.last(lines)
    if found is None:
        return "", "", ()
    if found.behind > (LITTLE if code == 1 else 0):
        fact = f"the last traceback, {found.behind} lines before the end of the log: {found.error} at {found.frame}"
        return "", "", (fact,)
    facts = [f"{found.behind} lines follow the error in the log"] if found.behind > 1 else []
    facts += [f"raised in thread {found.thread}, whose end does not end the program"] if found.thread else []
    facts += [f"raised from {cause}" for cause in found.causes]
    return found.frame, found.error, (*facts, *(f"in the group: {each}" for each in found.members))


def _of_shell(code: int, lines: Sequence[str]) -> Optional[ExitFinding]:
    if code == 127 and _shell_says(lines, "not found"):
        return ExitFinding(CauseKind.NOT_FOUND, lines[-1], ("exit code 127: the shell did not find the command",))
    if code == 126 and _shell_says(lines, "ermission denied"):
        return ExitFinding(CauseKind.NOT_EXECUTABLE, lines[-1], ("exit code 126: the shell may not execute it",))
    return None


def _of_storage(code: int, lines: Sequence[str]) -> Optional[ExitFinding]:
    """The words of what stands around the command of a rank with buckets."""
    kind = {REFUSED: CauseKind.MISSING_INPUT, CANNOT: CauseKind.USER_ERROR}.get(code)
    if kind is None or not lines or not lines[-1].startswith(COMPLAINT):
        return None
    return ExitFinding(kind, lines[-1].partition("error: ")[2])


def _of_words(code: int, lines: Sequence[str], error: str, oom: int, run_dir: str) -> Optional[ExitFinding]:
    """What the error or the log's end says by itself, together with what the kernel and the disk say."""
    text = "\n".join([error, *lines[_index(lines, error) :]] if error else lines[-8:])
    kind, word = next(((kind, word) for kind, words in TEXTS for word in words if word in text), (None, ""))
    free = _free(run_dir)
    space = f"{syscalls.size(free)} are free where the run is kept"
    if oom > 0 and kind is not CauseKind.LOST_RENDEZVOUS:
        message = f"a process was killed for lack of memory, then the rank exited with code {code}"
        return ExitFinding(CauseKind.OUT_OF_MEMORY, message, _memory(oom))
    if error.split(":", 1)[0].endswith(ALLOCATIONS) or any(word in error for word in ALLOCATIONS[3:]):
        return ExitFinding(CauseKind.OUT_OF_MEMORY, "the program could not get the memory it asked for", _memory(0))
    if kind is None and free < run_layout.LEAST_FREE:  # so full that the log cannot tell
        return ExitFinding(CauseKind.DISK_FULL, f"the disk of {run_dir} is full", (space,))
    if kind is None or kind is CauseKind.DISK_FULL and not error and free >= NEARLY_FULL:
        return None
    facts = {CauseKind.DISK_FULL: (space,), CauseKind.NOT_WRITABLE: _as_whom(error)}.get(kind, ())
    if kind is CauseKind.NO_NAME:
        facts = dns_check.facts()
    return ExitFinding(kind, error or next(line for line in reversed(lines) if word in line), facts)


def _as_whom(error: str) -> Tuple[str, ...]:
    """Rights were refused: to whom?"""
    refused = "[Errno 13]" in error or "[Errno 30]" in error
    return (f"it ran as uid {os.geteuid()}, gid {os.getegid()}",) if refused else ()


def of_start(failure: CannotStart, path: str) -> Cause:
    """Why a command could not even be started."""
    kinds = {
        errno.ENOENT: CauseKind.NOT_FOUND,
        errno.EACCES: CauseKind.NOT_EXECUTABLE,
        errno.ENOEXEC: CauseKind.NOT_EXECUTABLE,
    }
    kind = kinds.get(failure.error, CauseKind.INTERNAL)
    facts = [f"{failure.doing} {failure.path}: {os.strerror(failure.error)}"]
    if failure.doing == "enter the directory":
        return Cause(
            CauseKind.MISSING_INPUT, f"the code directory {failure.path} cannot be entered", evidence=tuple(facts)
        )
    file = os.path.join(failure.cwd, failure.path)
    if kind is CauseKind.NOT_FOUND and "/" in failure.path and os.path.exists(file):
        message = f"the interpreter that {failure.path} names in its first line was not found"
        facts.append(f"its first line: {_first_line(file)}")
    elif kind is CauseKind.NOT_FOUND:
        message = f"the command {failure.path} was not found"
        facts.append(f"looked for it {f'in {failure.cwd}' if '/' in failure.path else f'on PATH={path}'}")
    elif failure.error == errno.ENOEXEC:
        message = f"the file {failure.path} is not a program, nor a script that names its interpreter"
        facts.append(f"its first line: {_first_line(file)}")
    elif kind is CauseKind.NOT_EXECUTABLE and os.path.isdir(file):
        message = f"{failure.path} is a directory"
    elif kind is CauseKind.NOT_EXECUTABLE:
        message = f"the file {failure.path} may not be executed: chmod +x {failure.path}"
    else:
        message = str(failure)
    return Cause(kind, message, evidence=tuple(facts))


def of_writing(error: OSError) -> Cause:
    """Why the directories of a rank could not be made, or its files not be had."""
    if error.errno == errno.ESTALE:
        return Cause(CauseKind.AGENT_LOST, f"its place was taken: {error.strerror}")
    kind = CauseKind.DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else CauseKind.NOT_WRITABLE
    uid, gid = os.geteuid(), os.getegid()
    return Cause(kind, f"cannot write {error.filename}: {error.strerror}", evidence=(f"as uid {uid}, gid {gid}",))


def oom_kills() -> int:
    """How many processes of this cgroup the kernel has killed for memory; -1 when it does not tell."""
    for path in _files("memory.events", "memory.oom_control"):
        try:
            with open(path, encoding="utf-8") as file:
                for line in file:
                    name, _, value = line.partition(" ")
                    if name == "oom_kill":
                        return int(value)
        except (OSError, ValueError):
            continue
    return -1


def _memory(kills: int) -> Tuple[str, ...]:
    """What the kernel says about memory here: kills, and the limit."""
    counted = f"the kernel counted {kills} out-of-memory kill{'s' * (kills != 1)} in the rank's cgroup while it ran"
    facts = [counted] if kills else []
    limit = next((value for value in map(_number, _files("memory.max", "memory.limit_in_bytes")) if value >= 0), -1)
    if 0 <= limit < NO_LIMIT:
        facts.append(f"the rank's cgroup has a limit of {syscalls.size(limit)}")
    return tuple(facts)


def _files(unified: str, legacy: str) -> List[str]:
    """Where this process's cgroup keeps a figure about memory: version 2's name, version 1's name."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            entries = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    found = []
    for entry in entries:
        if len(entry) != 3:
            continue
        _, controllers, path = entry
        if controllers == "":
            found += [f"/sys/fs/cgroup{path}/{unified}", f"/sys/fs/cgroup/{unified}"]
        elif "memory" in controllers.split(","):
            found += [f"/sys/fs/cgroup/memory{path}/{legacy}", f"/sys/fs/cgroup/memory/{legacy}"]
    return found


def _number(path: str) -> int:
    try:
        with open(path, encoding="utf-8") as file:
            return int(file.read())
    except (OSError, ValueError):
        return -1


def _of_signal(signum: int, oom: int, asked: bool) -> ExitFinding:
    name = signal_name(signum)
    if signum == signal.SIGKILL and oom > 0:
        return ExitFinding(CauseKind.OUT_OF_MEMORY, "killed by the kernel for lack of memory", _memory(oom))
    if signum == signal.SIGKILL and not asked:
        told = (
            "no out-of-memory kill was counted"
            if oom == 0
            else "the kernel's out-of-memory counter cannot be read here"
        )
        return ExitFinding(CauseKind.KILLED, f"killed by signal {signum} ({name}), sender unknown", (told,))
    return ExitFinding(CauseKind.KILLED, f"killed by signal {signum} ({name})")


def _shell_says(lines: Sequence[str], words: str) -> bool:
    return bool(lines) and words in lines[-1]


def _index(lines: Sequence[str], error: str) -> int:
    """Where the error stands in the log; what it says may go on for some lines."""
    return max((i for i, line in enumerate(lines) if line.endswith(error)), default=len(lines))


def _first_line(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return repr(file.readline(120).decode("utf-8", "replace").rstrip("\n"))
    except OSError as error:
        return error.strerror or ""


def _free(directory: str) -> int:
    try:
        found = run_layout.free_bytes(directory)
    except OSError:
        found = None
    return NEARLY_FULL if found is None else found
