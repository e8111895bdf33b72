"""Causes of exits: turns exit code, signal, log and kernel counters into a `Cause` with its evidence.

Nothing is guessed: a SIGKILL is an out-of-memory kill only if the kernel's counter rose while the rank
ran; otherwise it is a signal of unknown origin.
"""

from __future__ import annotations

import errno
import os
import signal
from typing import List, NamedTuple, Optional, Sequence, Tuple

from longboat.runtime import run_layout
from longboat.runtime.agent import dns_check, syscalls, tracebacks
from longboat.runtime.agent.rank_process import CannotStart, StartStep
from longboat.runtime.buckets.bucket_mounts import CANNOT, REFUSED
from longboat.runtime.causes import Cause, CauseKind, signal_name

TAIL_BYTES = 64 * 1024
TAIL_LINES = 20
LINE_MOST = 500
LITTLE = 15
"""Lines that may follow an error that ended a program: the rest of its text, and shutdown messages."""
NO_LIMIT = 1 << 60
"""Bytes; larger values mean "no limit" in cgroups version 1."""
NEARLY_FULL = 2 * 1024 * 1024
"""Bytes; with more left, a log that mentions a full disk means another disk."""

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
"""Signals that an exit code of 128 + N may stand for."""
_CRASHES = _FATAL - {int(signal.SIGKILL), int(signal.SIGTERM), int(signal.SIGSYS)}
"""Signals on which Python prints its stack."""

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
"""Texts that name a cause, searched in the error of a failed process, or at the end of its log if there is no
traceback; the first match wins. Only texts that a healthy peer does not print."""

ALLOCATIONS = ("MemoryError", "ArrayMemoryError", "OutOfMemoryError", "RESOURCE_EXHAUSTED: Out of memory")
"""Errors that mean out of memory: of the host or of an accelerator."""


class ExitFinding(NamedTuple):
    """What one rule concludes from an exit."""

    kind: CauseKind
    message: str
    facts: Tuple[str, ...] = ()


def tail(path: str, start: int, end: Optional[int] = None) -> List[str]:
    """The last lines written between two offsets of a log; any bytes are allowed."""
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
    """The last lines, as many as a cause carries."""
    return tuple(lines[-TAIL_LINES:])


def of_exit(
    code: int,
    signum: int,
    lines: Sequence[str],
    oom_kills: int,
    asked: bool,
    run_dir: str,
    buckets: bool = False,
) -> Optional[Cause]:
    """The cause of an exit; None if it exited with 0. buckets: the command ran in the bucket wrapper."""
    if code == 0:
        return None
    killed_by = signum or (code - 128 if code - 128 in _FATAL else 0)
    frame, error, facts = _error(code, killed_by, lines)
    reported = killed_by if not signum and (not error or error.startswith(tracebacks.FATAL)) else 0
    finding = (
        _of_signal(signum or reported, oom_kills, asked)
        if signum or reported
        else _of_shell(code, lines)
        or (_of_storage(code, lines) if buckets else None)
        or _of_texts(code, lines, error, oom_kills, run_dir)
        or ExitFinding(CauseKind.USER_ERROR, error or f"exited with code {code}", _user_facts(error))
    )
    if reported:
        facts = (f"exit code {code}: a shell's code for a command killed by signal {reported}", *facts)
    return Cause(
        finding.kind,
        finding.message,
        exit_code=code,
        signal=signum or reported,
        frame=frame,
        error=error,
        lines=kept(lines),
        evidence=(*finding.facts, *facts),
    )


def _error(code: int, signum: int, lines: Sequence[str]) -> Tuple[str, str, Tuple[str, ...]]:
    """(frame, error, more facts) of the traceback that ended the process. Python exits with code 1 after it, and
    prints little more. Any other traceback may be of an error that the program handled: it is evidence, not
    the error."""
    if signum in _CRASHES:
        frame, error = tracebacks.fatal(lines)
        if error:
            return frame, error, ()
    traceback = tracebacks.last(lines)
    if traceback is None:
        return "", "", ()
    if traceback.behind > (LITTLE if code == 1 else 0):
        last = f"{traceback.error} at {traceback.frame}"
        return "", "", (f"the last traceback, {traceback.behind} lines before the end of the log: {last}",)
    facts = [f"{traceback.behind} lines follow the error in the log"] if traceback.behind > 1 else []
    if traceback.thread:
        facts.append(f"raised in thread {traceback.thread}, which does not end the program")
    facts += [f"raised from {cause}" for cause in traceback.causes]
    return traceback.frame, traceback.error, (*facts, *(f"in the group: {member}" for member in traceback.members))


def _of_shell(code: int, lines: Sequence[str]) -> Optional[ExitFinding]:
    if code == 127 and _shell_says(lines, "not found"):
        return ExitFinding(CauseKind.NOT_FOUND, f"the command was not found: {lines[-1]}", ("exit code 127",))
    if code == 126 and _shell_says(lines, "ermission denied"):
        return ExitFinding(CauseKind.NOT_EXECUTABLE, lines[-1], ("exit code 126: the shell cannot execute it",))
    return None


def _of_storage(code: int, lines: Sequence[str]) -> Optional[ExitFinding]:
    """The error of the bucket wrapper around a rank's command."""
    kind = {REFUSED: CauseKind.MISSING_INPUT, CANNOT: CauseKind.USER_ERROR}.get(code)
    if kind is None:
        return None
    last = lines[-1] if lines else f"exited with code {code}"
    return ExitFinding(kind, last[len("error: ") :] if last.startswith("error: ") else last)


def _of_texts(code: int, lines: Sequence[str], error: str, oom: int, run_dir: str) -> Optional[ExitFinding]:
    """A cause named by the error or the end of the log, checked against the kernel's counters and the disk."""
    text = "\n".join([error, *lines[_index(lines, error) :]] if error else lines[-8:])
    kind, match = next(((kind, text_) for kind, texts in TEXTS for text_ in texts if text_ in text), (None, ""))
    free = _free(run_dir)
    space = f"{syscalls.size(free)} free in the run's directory"
    if oom > 0 and kind is not CauseKind.LOST_RENDEZVOUS:
        message = f"a process was killed because memory ran out, then the rank exited with code {code}"
        return ExitFinding(CauseKind.OUT_OF_MEMORY, message, _memory(oom))
    if error.split(":", 1)[0].endswith(ALLOCATIONS) or any(name in error for name in ALLOCATIONS[3:]):
        return ExitFinding(CauseKind.OUT_OF_MEMORY, "the program could not allocate memory", _memory(0))
    if kind is None and free < run_layout.LEAST_FREE:  # so full that the log cannot show it
        return ExitFinding(CauseKind.DISK_FULL, f"the disk of {run_dir} is full", (space,))
    if kind is None or kind is CauseKind.DISK_FULL and not error and free >= NEARLY_FULL:
        return None
    facts = {CauseKind.DISK_FULL: (space,), CauseKind.NOT_WRITABLE: _user_facts(error)}.get(kind, ())
    if kind is CauseKind.NO_NAME:
        facts = dns_check.facts()
    return ExitFinding(kind, error or next(line for line in reversed(lines) if match in line), facts)


def _user_facts(error: str) -> Tuple[str, ...]:
    """User and group of the rank, if its permissions were not enough."""
    refused = "[Errno 13]" in error or "[Errno 30]" in error
    return (f"it ran as uid {os.geteuid()}, gid {os.getegid()}",) if refused else ()


def of_start(failure: CannotStart, path: str) -> Cause:
    """The cause of a command that could not be started."""
    kinds = {
        errno.ENOENT: CauseKind.NOT_FOUND,
        errno.EACCES: CauseKind.NOT_EXECUTABLE,
        errno.ENOEXEC: CauseKind.NOT_EXECUTABLE,
    }
    kind = kinds.get(failure.error, CauseKind.INTERNAL)
    facts = [f"{failure.doing.value} {failure.path}: {os.strerror(failure.error)}"]
    if failure.doing is StartStep.ENTER_DIRECTORY:
        return Cause(CauseKind.MISSING_INPUT, f"cannot enter the code directory {failure.path}", evidence=tuple(facts))
    file = os.path.join(failure.cwd, failure.path)
    if kind is CauseKind.NOT_FOUND and "/" in failure.path and os.path.exists(file):
        message = f"the interpreter in the first line of {failure.path} was not found"
        facts.append(f"its first line: {_first_line(file)}")
    elif kind is CauseKind.NOT_FOUND:
        message = f"the command {failure.path} was not found"
        facts.append(f"looked for it {f'in {failure.cwd}' if '/' in failure.path else f'on PATH={path}'}")
    elif failure.error == errno.ENOEXEC:
        message = f"{failure.path} is neither a program nor a script with a #! line"
        facts.append(f"its first line: {_first_line(file)}")
    elif kind is CauseKind.NOT_EXECUTABLE and os.path.isdir(file):
        message = f"{failure.path} is a directory"
    elif kind is CauseKind.NOT_EXECUTABLE:
        message = f"{failure.path} is not executable; run: chmod +x {failure.path}"
    else:
        message = str(failure)
    return Cause(kind, message, evidence=tuple(facts))


def of_writing(error: OSError) -> Cause:
    """The cause of a rank's directories or files that could not be written."""
    if error.errno == errno.ESTALE:
        return Cause(CauseKind.AGENT_LOST, f"another agent took over its seat: {error.strerror}")
    kind = CauseKind.DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else CauseKind.NOT_WRITABLE
    uid, gid = os.geteuid(), os.getegid()
    return Cause(kind, f"cannot write {error.filename}: {error.strerror}", evidence=(f"as uid {uid}, gid {gid}",))


def oom_kills() -> int:
    """Processes of this cgroup that the kernel killed for memory; -1 if it does not say."""
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
    """Facts about memory from the kernel: out-of-memory kills and the limit."""
    count = f"the kernel counted {kills} out-of-memory kill{'s' * (kills != 1)} in the rank's cgroup while it ran"
    facts = [count] if kills else []
    limit = next((value for value in map(_number, _files("memory.max", "memory.limit_in_bytes")) if value >= 0), -1)
    if 0 <= limit < NO_LIMIT:
        facts.append(f"the rank's cgroup has a limit of {syscalls.size(limit)}")
    return tuple(facts)


def _files(unified: str, legacy: str) -> List[str]:
    """Paths of a memory figure of this process's cgroup: its name in version 2 and in version 1."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            entries = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    paths = []
    for entry in entries:
        if len(entry) != 3:
            continue
        _, controllers, path = entry
        if controllers == "":
            paths += [f"/sys/fs/cgroup{path}/{unified}", f"/sys/fs/cgroup/{unified}"]
        elif "memory" in controllers.split(","):
            paths += [f"/sys/fs/cgroup/memory{path}/{legacy}", f"/sys/fs/cgroup/memory/{legacy}"]
    return paths


def _number(path: str) -> int:
    try:
        with open(path, encoding="utf-8") as file:
            return int(file.read())
    except (OSError, ValueError):
        return -1


def _of_signal(signum: int, oom: int, asked: bool) -> ExitFinding:
    name = signal_name(signum)
    if signum == signal.SIGKILL and oom > 0:
        return ExitFinding(CauseKind.OUT_OF_MEMORY, "killed by the kernel because memory ran out", _memory(oom))
    if signum == signal.SIGKILL and not asked:
        fact = (
            "no out-of-memory kill was counted"
            if oom == 0
            else "the kernel's out-of-memory counter cannot be read here"
        )
        return ExitFinding(CauseKind.KILLED, f"killed by signal {signum} ({name}), sender unknown", (fact,))
    return ExitFinding(CauseKind.KILLED, f"killed by signal {signum} ({name})")


def _shell_says(lines: Sequence[str], text: str) -> bool:
    return bool(lines) and text in lines[-1]


def _index(lines: Sequence[str], error: str) -> int:
    """Index of the error in the log; its text may continue on later lines."""

    return max((i for i, line in enumerate(lines) if line.endswith(error)), default=len(lines))


def _first_line(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return repr(file.readline(120).decode("utf-8", "replace").rstrip("\n"))
    except OSError as error:
        return error.strerror or ""


def _free(directory: str) -> int:
    try:
        free = run_layout.free_bytes(directory)
    except OSError:
        free = None
    return NEARLY_FULL if free is None else free
