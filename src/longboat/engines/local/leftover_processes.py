"""Processes that a killed driver left running, found by the environment of their rank.

Without a PID namespace, killing driver, supervisor and agents at once leaves what the ranks had started. A resumed run
would train beside it, into the same logs.
"""

from __future__ import annotations

import os
import signal
import time

from longboat.runtime.agent import syscalls
from longboat.runtime.errors import LongboatError

PATIENCE = 10.0
"""Seconds for killed processes to disappear."""


def end(run_dir: str) -> list[int]:
    """Kills what runs in the environment of one of the run's ranks; returns the PIDs."""
    killed: list[int] = []
    due = time.monotonic() + PATIENCE
    while pids := _of_run(run_dir):
        if time.monotonic() > due:
            raise LongboatError(
                f"processes of an earlier driver of this run cannot be ended: {', '.join(map(str, pids))}",
                "end them, then resume the run",
            )
        syscalls.signal_all(pids, signal.SIGKILL)
        killed += [pid for pid in pids if pid not in killed]
        time.sleep(0.01)
    return killed


def _of_run(run_dir: str) -> list[int]:
    tree, directory = syscalls.process_tree(), os.path.realpath(run_dir) + "/"
    ours = _ancestors(tree)
    pids = [pid for children in tree.values() for pid in children if pid not in ours]
    return [pid for pid in pids if _report_file(pid).startswith(directory)]


def _ancestors(tree: dict[int, list[int]]) -> set[int]:
    """This process and those above it: a run may be resumed from a shell beside one of its ranks."""
    parents = {child: parent for parent, children in tree.items() for child in children}
    pid, ancestors = os.getpid(), set[int]()
    while pid and pid not in ancestors:
        ancestors.add(pid)
        pid = parents.get(pid, 0)
    return ancestors


def _report_file(pid: int) -> str:
    """The rank's report file, which is in its run's directory; empty if the process does not belong to a rank, has
    ended or is another user's."""
    mark = b"LONGBOAT_REPORT_FILE="
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            paths = [entry[len(mark) :] for entry in file.read().split(b"\0") if entry.startswith(mark)]
    except OSError:
        return ""
    return os.path.realpath(os.fsdecode(paths[0])) if paths else ""
