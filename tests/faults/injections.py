"""How harm is done from outside: signals to real processes, a small memory cgroup, a small disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.fault import Fault, Injection
from tests.local.place import Command, Place, until

MEMORY = Path("/sys/fs/cgroup/memory")
UNIFIED = Path("/sys/fs/cgroup")


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def begin(longboat: Place, fault: Fault, ranks: int = 1) -> Command:
    """Runs the job until every rank of its only stage has printed `up` and the journal knows it."""
    command = longboat.start(fault.job, "--quiet", env=dict(fault.env), **fault.scripts)
    for rank in range(ranks):
        longboat.printed("up", rank)
    until(lambda: len([e for e in longboat.events("rank.started") if e["role"] == "worker"]) >= ranks)
    return command


def pid_of(longboat: Place, rank: int, role: str = "worker") -> int:
    found = [e for e in longboat.events("rank.started") if (e["role"], e["rank"]) == (role, rank)]
    return int(found[-1]["pid"])


def signalled(number: int, rank: int = 0, ranks: int = 1) -> Injection:
    """A signal to a rank's own process."""

    def inject(longboat: Place, fault: Fault) -> None:
        command = begin(longboat, fault, ranks)
        os.kill(pid_of(longboat, rank), number)
        command.said()

    return inject


def agent_signalled(number: int, rank: int = 0, ranks: int = 1) -> Injection:
    def inject(longboat: Place, fault: Fault) -> None:
        command = begin(longboat, fault, ranks)
        os.kill(parent_of(pid_of(longboat, rank)), number)
        command.said()

    return inject


def supervisor_killed(longboat: Place, fault: Fault) -> None:
    command = begin(longboat, fault)
    fork_server = parent_of(parent_of(pid_of(longboat, 0)))
    os.kill(parent_of(fork_server), signal.SIGKILL)
    command.said()


def driver_killed(longboat: Place, fault: Fault) -> None:
    command = begin(longboat, fault)
    command.kill()
    until(lambda: not longboat.processes(), "the end of all processes")


def driver_signalled(number: int) -> Injection:
    """A key at the terminal, or the terminal's end: to the command's whole process group."""

    def inject(longboat: Place, fault: Fault) -> None:
        command = begin(longboat, fault)
        command.signal(number)
        command.said()

    return inject


def stopped(longboat: Place, fault: Fault) -> None:
    command = begin(longboat, fault)
    assert longboat("stop", longboat.id).code == 0
    command.said()


def at_step(longboat: Place, fault: Fault) -> None:
    """Stops a rank with SIGSTOP once it has reported."""
    command = begin(longboat, fault, 2)
    until(lambda: [e for e in longboat.events("rank.report") if e["rank"] == 1], "a report of rank 1")
    os.kill(pid_of(longboat, 1), signal.SIGSTOP)
    command.said()


def in_little_memory(longboat: Place, fault: Fault) -> None:
    """The whole run lives in a memory cgroup of its own with a small limit."""
    with small_cgroup(96 << 20) as procs:
        python = [*longboat.python]
        longboat.python = ["sh", "-c", f'echo $$ > {procs}; exec "$@"', "sh", *python]
        try:
            longboat.run(fault.job, "--quiet", env=dict(fault.env), **fault.scripts)
        finally:
            longboat.python = python


@contextlib.contextmanager
def small_cgroup(limit: int) -> Iterator[Path]:
    """The file to write a process's number to, in whichever version of cgroups this machine has."""
    one, limits = MEMORY, ("memory.limit_in_bytes",)
    if not (MEMORY / limits[0]).exists():
        one, limits = UNIFIED, ("memory.max",)
    place = one / f"longboat-test-{uuid.uuid4().hex[:8]}"
    try:
        place.mkdir()
        for name in limits:
            (place / name).write_text(str(limit))
        with contextlib.suppress(OSError):
            (place / "memory.swap.max").write_text("0")
        with contextlib.suppress(OSError):
            (place / "memory.swappiness").write_text("0")
    except OSError as error:
        with contextlib.suppress(OSError):
            place.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    try:
        yield place / "cgroup.procs"
    finally:
        until(lambda: not (place / "cgroup.procs").read_text(), "the end of the cgroup's processes")
        for _ in range(100):
            try:
                place.rmdir()
                break
            except OSError:
                time.sleep(0.01)


def on_a_small_disk(longboat: Place, fault: Fault) -> None:
    """The home is a disk of two megabytes in a mount namespace; the run is copied out of it at the end."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    job = longboat.job(fault.job, **fault.scripts)
    small, kept = longboat.code / "small", longboat.home
    small.mkdir()
    script = (
        f"mount -t tmpfs -o size=2m tmpfs {small} && "
        f"LONGBOAT_HOME={small} {sys.executable} -m longboat run --quiet {job}; cp -a {small} {kept}"
    )
    subprocess.run(["unshare", "--mount", "sh", "-c", script], env=longboat.env, cwd=longboat.code, check=True)


def without_mpirun(longboat: Place, fault: Fault) -> None:
    """An environment of its own whose mpirun a first stage takes away: too late for the check at the door."""
    place = longboat.code / "env"
    place.mkdir()
    os.symlink(sys.executable, place / "python")
    (place / "mpirun").write_text("#!/bin/sh\n")
    (place / "mpirun").chmod(0o755)
    found = [shutil.which(name) for name in ("mpirun", "mpiexec")]
    path = ":".join(d for d in os.environ["PATH"].split(":") if not any(p and os.path.dirname(p) == d for p in found))
    longboat.run(fault.job, "--quiet", env={"PATH": path}, **fault.scripts)
