"""The few system calls that Python's os module lacks, and what to do where they do not exist."""

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
"""The name of a process that, asked to end, asks all below it, and once, however often it is asked itself."""


@functools.cache
def libc() -> ctypes.CDLL:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process when its parent ends, also if that has happened already."""
    if not LINUX:
        return
    libc().prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Grandchildren whose parent ends become children of this process, and so can be found."""
    if LINUX:
        libc().prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def become_relay() -> None:
    """From now on whoever asks this process to end leaves it to it to ask what is below it (`ask_to_end`)."""
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
    found: List[int] = []
    queue = list(tree.get(root, ()))
    while queue:
        pid = queue.pop()
        found.append(pid)
        queue += tree.get(pid, ())
    return found


def descendants(root: int) -> List[int]:
    """All processes below `root`; none where there is no /proc."""
    return below(process_tree(), root)


def ask_to_end(group: int) -> None:
    """SIGTERM for all below this process; for the process group where there is no /proc. Once for each, for a second
    one makes many programs drop what they are saving: what is below a relay is left to that."""
    if not process_tree():
        try:
            os.killpg(group, signal.SIGTERM)
            os.killpg(group, signal.SIGCONT)
        except (ProcessLookupError, PermissionError):
            pass
        return
    told: Set[int] = set()
    for _ in range(3):  # a process may have been in the middle of a fork
        untold = [pid for pid in _audience(os.getpid()) if pid not in told]
        signal_all(untold, signal.SIGTERM)
        signal_all(untold, signal.SIGCONT)
        told.update(untold)


def _audience(root: int) -> List[int]:
    """All processes below `root` but those below a relay."""
    tree = process_tree()
    found: List[int] = []
    queue = list(tree.get(root, ()))
    while queue:
        pid = queue.pop()
        found.append(pid)
        if not _is_relay(pid):
            queue += tree.get(pid, ())
    return found


def _is_relay(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read() == RELAY + b"\n"
    except OSError:
        return False


outer_proc = -1
"""The /proc of the machine, kept open by whoever moved into a PID namespace; -1 outside of one."""


def outside_pid() -> int:
    """The number by which the rest of the machine knows this process."""
    try:
        return int(os.readlink("self", dir_fd=outer_proc)) if outer_proc >= 0 else os.getpid()
    except OSError:  # there is no process file system at /proc
        return os.getpid()


def outside_pid_of(pid: int) -> int:
    """The same for another process of this namespace; 0 when it has ended."""
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
    """A child that does the work and ends with the code that it gives (1 if it breaks off); its number. Nothing of
    the parent's own code goes on in it, whatever happens."""
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
    """Memory or disk for a person, in the units that jobs ask in. (Of files `runs.words` tells.)"""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
