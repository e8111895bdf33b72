"""Runs a command beside a rank: in the same directory, environment and namespaces."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence

from longboat.runtime.agent.syscalls import libc
from longboat.runtime.errors import LongboatError


def execute(pid: int, command: Sequence[str]) -> int:
    """Runs the command beside the process, waits for it, and returns its exit code."""
    try:
        env = _environment(pid)
        cwd = os.readlink(f"/proc/{pid}/cwd")
        namespaces = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in _differing(pid)]
    except OSError as error:
        raise LongboatError(
            f"cannot enter process {pid}: {error.strerror}", "it may have just exited: longboat status"
        ) from None
    # A process that entered a PID namespace cannot fork once that namespace is gone, so a child enters it.
    child = os.fork()
    if child == 0:
        try:
            os._exit(_inside(namespaces, cwd, command, env))
        finally:
            os._exit(126)
    for namespace in namespaces:
        os.close(namespace)
    return _exit_code(os.waitpid(child, 0)[1])


def _inside(namespaces: Sequence[int], cwd: str, command: Sequence[str], env: Mapping[str, str]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command handles it
    for namespace in namespaces:
        if libc().setns(namespace, 0) != 0:
            os.write(2, b"error: cannot enter a namespace of the rank\n")
            return 126
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            os.chdir(cwd)
            os.execvpe(command[0], list(command), dict(env))
        except OSError as error:
            os.write(2, f"error: {command[0]}: {error.strerror}\n".encode())
        finally:
            os._exit(127)
    return _exit_code(os.waitpid(child, 0)[1])


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _environment(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/environ", "rb") as file:
        pairs = (entry.partition(b"=") for entry in file.read().split(b"\0") if entry)
        env = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    for name in ("TERM", "COLORTERM", "LANG"):
        if name in os.environ:
            env.setdefault(name, os.environ[name])
    return env


def _differing(pid: int) -> list[str]:
    """Namespaces of the process that this process is not in."""
    return [kind for kind in ("user", "pid", "mnt") if _differs(pid, kind)]


def _differs(pid: int, kind: str) -> bool:
    return os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
