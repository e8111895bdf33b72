"""A command beside a running rank: the same directory, environment and namespaces."""

from __future__ import annotations

import os
from collections.abc import Sequence

from longboat.runtime.agent.syscalls import libc
from longboat.runtime.errors import LongboatError


def execute(pid: int, command: Sequence[str]) -> int:
    """Runs the command beside the process and waits for it; its exit code."""
    try:
        env = _environment(pid)
        cwd = os.readlink(f"/proc/{pid}/cwd")
        _enter(pid)
    except OSError as error:
        raise LongboatError(f"process {pid} cannot be joined: {error.strerror}", "has it just ended?") from None
    child = os.fork()
    if child == 0:
        try:
            os.chdir(cwd)
            os.execvpe(command[0], list(command), env)
        except OSError as error:
            os.write(2, f"error: {command[0]}: {error.strerror}\n".encode())
        finally:
            os._exit(127)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


def _environment(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/environ", "rb") as file:
        pairs = (entry.partition(b"=") for entry in file.read().split(b"\0") if entry)
        env = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    for name in ("TERM", "COLORTERM", "LANG"):
        if name in os.environ:
            env.setdefault(name, os.environ[name])
    return env


def _enter(pid: int) -> None:
    """Moves into the namespaces of the process that are not ours already."""
    kinds = [kind for kind in ("user", "pid", "mnt") if _differs(pid, kind)]
    handles = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in kinds]
    for kind, handle in zip(kinds, handles, strict=True):
        if libc().setns(handle, 0) != 0:
            raise OSError(1, f"its {kind} namespace cannot be entered")
        os.close(handle)


def _differs(pid: int, kind: str) -> bool:
    return os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
