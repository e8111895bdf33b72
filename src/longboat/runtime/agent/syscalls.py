"""System calls that Python's os module lacks, with fallbacks where they do not exist."""

from __future__ import annotations

import functools
import os
import signal
import sys
from typing import TYPE_CHECKING, Callable, Dict, List, Set

if TYPE_CHECKING:
    import ctypes

LINUX = sys.platform.startswith("linux")

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36

RELAY = b"longboat-relay"
"""Name of a relay: a process that passes SIGTERM on to everything below it, once, however often it gets it."""


@functools.cache
def libc() -> ctypes.CDLL:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Kill this process when its parent ends, also if it has ended already."""
    if not LINUX:
        return
    libc().prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the parent of orphaned descendants, so that it can find them."""
    if LINUX:
        libc().prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def become_relay() -> None:
    """Make this process a relay: `ask_to_end` leaves everything below it to it."""
    if LINUX:
        libc().prctl(PR_SET_NAME, RELAY, 0, 0, 0)


def process_tree() -> Dict[int, List[int]]:
    """Parent -> children, for every process that /proc shows."""
    children: Dict[int, List[int]] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return children
    for name in names:
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                stat = file.read()
        except OSError:
            continue
        parent = int(stat[stat.rindex(b")") + 2 :].split()[1])
        children.setdefault(parent, []).append(int(name))
    return children


def below(tree: Dict[int, List[int]], root: int) -> List[int]:
    pids: List[int] = []
    queue = list(tree.get(root, ()))
    while queue:
        pid = queue.pop()
        pids.append(pid)
        queue += tree.get(pid, ())
    return pids


def descendants(root: int) -> List[int]:
    """All processes below `root`; none without /proc."""
    return below(process_tree(), root)


def ask_to_end(group: int) -> None:
    """Send SIGTERM to everything below this process, or to the process group if there is no /proc. Each process
    gets it once: a second one makes many programs drop what they are saving. Relays pass it on themselves."""
    if not process_tree():
        try:
            os.killpg(group, signal.SIGTERM)
            os.killpg(group, signal.SIGCONT)
        except (ProcessLookupError, PermissionError):
            pass
        return
    signalled: Set[int] = set()
    for _ in range(3):  # a process may have been in the middle of a fork
        pids = [pid for pid in _without_relayed(os.getpid()) if pid not in signalled]
        signal_all(pids, signal.SIGTERM)
        signal_all(pids, signal.SIGCONT)
        signalled.update(pids)


def _without_relayed(root: int) -> List[int]:
    """All processes below `root`, except those below a relay."""
    tree = process_tree()
    pids: List[int] = []
    queue = list(tree.get(root, ()))
    while queue:
        pid = queue.pop()
        pids.append(pid)
        if not _is_relay(pid):
            queue += tree.get(pid, ())
    return pids


def _is_relay(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read() == RELAY + b"\n"
    except OSError:
        return False


outer_proc = -1
"""The machine's /proc, kept open by a process that moved into a PID namespace; -1 outside of one."""


def outside_pid() -> int:
    """This process's pid outside of the PID namespace."""
    try:
        return int(os.readlink("self", dir_fd=outer_proc)) if outer_proc >= 0 else os.getpid()
    except OSError:  # there is no process file system at /proc
        return os.getpid()


def outside_pid_of(pid: int) -> int:
    """The pid of another process of this namespace outside of it; 0 if it has ended."""
    if outer_proc < 0:
        return pid
    ours = os.readlink("self/ns/pid", dir_fd=outer_proc)
    for name in os.listdir(outer_proc):
        if name.isdigit():
            try:
                fd = os.open(f"{name}/status", os.O_RDONLY, dir_fd=outer_proc)
                with os.fdopen(fd, encoding="utf-8", errors="replace") as file:
                    numbers = next((line.split() for line in file if line.startswith("NSpid:")), [])
                if numbers[-1:] == [str(pid)] and os.readlink(f"{name}/ns/pid", dir_fd=outer_proc) == ours:
                    return int(name)
            except OSError:
                continue
    return 0


def fork(work: Callable[[], int]) -> int:
    """Fork a child that runs `work` and exits with its result (1 if it raises); returns its pid. The child never
    continues with the parent's code."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = work()
    finally:
        os._exit(code)


def signal_all(pids: List[int], signum: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, signum)
        except (ProcessLookupError, PermissionError):
            pass


def size(count: float) -> str:
    """Bytes of memory or disk as text, in the units of job files. (`runs.formatting` does it for files.)"""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
