"""Who drives a run: the process that holds the lock on its `driver.lock`.

A POSIX lock belongs to one process, is not inherited by a fork and ends with its holder, however
that dies; so neither a stale file nor a reused process id can lie about a run being alive. The
process that holds it must not open the file a second time: closing that would drop the lock.

Ships into strangers' images: standard library only, Python 3.9.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import time

from windlass import layout
from windlass.errors import WindlassError

_FLOCK = "hhqqi4x" if sys.platform.startswith("linux") else ""
"""struct flock, where it is known: the kernel then names the holder. Elsewhere the file does."""


def take(run_dir: str) -> int:
    """Makes this process the run's driver; the descriptor must stay open."""
    fd = os.open(os.path.join(run_dir, layout.LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    for _ in range(50):
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(0.01)  # a reader asks by holding it for a moment
            continue
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return fd
    os.close(fd)
    name = os.path.basename(run_dir)
    raise WindlassError(f"run {name} is being driven by another process", f"watch it: windlass attach {name}")


def holder(run_dir: str) -> int:
    """Process id of the run's driver, 0 when nobody drives it."""
    try:
        fd = os.open(os.path.join(run_dir, layout.LOCK), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        if _FLOCK:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, asked))
            return 0 if kind == fcntl.F_UNLCK else int(pid)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return 0
        except OSError:
            return int(os.pread(fd, 32, 0) or b"0")
    finally:
        os.close(fd)
