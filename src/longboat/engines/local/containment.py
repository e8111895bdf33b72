"""Containment: no process of a run survives it, whichever process is killed with SIGKILL.

Where the kernel allows it, a run's processes live in their own PID namespace: when its first process dies, the kernel
kills all others, including grandchildren in their own session. The namespace has its own /proc, and its own /dev/shm
so that no segment outlives the run. Elsewhere a subreaper and parent-death signals do nearly the same;
`longboat doctor` says which one applies.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

from longboat.runtime.agent.syscalls import LINUX, libc
from longboat.runtime.light_dataclasses import dataclass

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC = 0x1, 0x20, 0x1000, 0x4000
MS_RELATIME = 1 << 21
MS_SLAVE = 1 << 19


@dataclass(frozen=True)
class Containment:
    kind: str
    detail: str
    complete: bool


NAMESPACE = Containment("pid namespace", "the kernel ends every process of a run when its supervisor is gone", True)
REAPER = Containment(
    "subreaper",
    "parent-death signals end a run's processes; one that detaches while supervisor and agent are killed can survive",
    False,
)
GROUPS = Containment("process groups", "processes that leave their group can survive a killed supervisor", False)


class NotAllowed(Exception):
    """The kernel refused a step of creating the namespace."""


def unshare() -> None:
    """Makes the next child of this process the first process of a new PID namespace."""
    user, group = os.geteuid(), os.getegid()
    flags = CLONE_NEWPID | CLONE_NEWNS | (CLONE_NEWUSER if user else 0)
    _call(libc().unshare(flags), "unshare")
    if user:
        try:
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/uid_map", f"{user} {user} 1")
            _write("/proc/self/gid_map", f"{group} {group} 1")
        except OSError as error:
            raise NotAllowed(str(error)) from None


def mount_private(read_only: Sequence[str] = ()) -> None:
    """In the first process of the namespace: mounts its own /proc and /dev/shm, and makes directories read-only."""
    _call(libc().mount(b"none", b"/", None, MS_REC | MS_SLAVE, None), "make mounts private")
    _call(libc().mount(b"proc", b"/proc", b"proc", 0, None), "mount /proc")
    if os.path.isdir("/dev/shm"):
        _call(libc().mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"mode=1777"), "mount /dev/shm")
    for path in read_only:
        _protect(os.fsencode(path))


def _protect(path: bytes) -> None:
    """Mounts a directory over itself, read-only. Keeps the file system's restrictions: a user namespace cannot lift
    them."""
    current = os.statvfs(path).f_flag
    kept = current & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME)
    relative = MS_RELATIME if current & os.ST_RELATIME else 0
    _call(libc().mount(path, path, None, MS_BIND | MS_REC, None), "bind a read-only mount")
    flags = MS_BIND | MS_REMOUNT | MS_RDONLY | kept | relative
    _call(libc().mount(b"none", path, None, flags, None), "make a mount read-only")


def probe() -> Containment:
    """The containment that this machine allows, found by trying it."""
    if not LINUX:
        return GROUPS
    pid = os.fork()
    if pid == 0:
        try:
            unshare()
            inner = os.fork()
            if inner == 0:
                mount_private()
                os._exit(0)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]) & 0xFF)
        except BaseException:
            os._exit(1)
    return NAMESPACE if os.waitpid(pid, 0)[1] == 0 else REAPER


def _call(result: int, doing: str) -> None:
    if result != 0:
        raise NotAllowed(f"{doing}: {os.strerror(ctypes.get_errno())}")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
