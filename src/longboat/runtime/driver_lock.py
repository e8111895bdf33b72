"""The lock of a run: the process that holds `driver.lock` drives the run.

A POSIX lock belongs to one process, is not inherited by a fork, and is released when its holder dies. So
neither a stale file nor a reused pid can make a run look alive. The holder must not open the file a second
time: closing it would release the lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
from typing import Optional

from longboat.runtime import run_layout
from longboat.runtime.errors import LongboatError

_LINUX = sys.platform.startswith("linux")
_FORM = "hhqqi" if _LINUX else "qqihh"
_WRITE = (fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0) if _LINUX else (0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET)
_TYPE, _PID = (0, 4) if _LINUX else (3, 2)
"""struct flock on Linux and macOS: its layout, a write lock on the whole file, positions of type and holder."""


def try_take(run_dir: str) -> Optional[int]:
    """Make this process the run's driver: returns a descriptor that must stay open, or None if another process
    drives the run."""
    fd = os.open(os.path.join(run_dir, run_layout.LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return None
        raise _unlockable(run_dir, error) from None
    return fd


def take(run_dir: str) -> int:
    """Make this process the run's driver, or raise an error if another process drives it."""
    fd = try_take(run_dir)
    if fd is None:
        name = os.path.basename(run_dir)
        raise LongboatError(f"run {name} is already driven by another process", f"watch it: longboat attach {name}")
    return fd


def holder(run_dir: str) -> int:
    """Pid of the run's driver; 0 if there is none; -1 if it is in another PID namespace. Does not take the lock."""
    try:
        fd = os.open(os.path.join(run_dir, run_layout.LOCK), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        answer = struct.unpack(_FORM, fcntl.fcntl(fd, fcntl.F_GETLK, struct.pack(_FORM, *_WRITE)))
    except OSError as error:
        raise _unlockable(run_dir, error) from None
    finally:
        os.close(fd)
    if answer[_TYPE] == fcntl.F_UNLCK:
        return 0
    return int(answer[_PID]) or -1


def _unlockable(run_dir: str, error: OSError) -> LongboatError:
    """Some NFS, Lustre and FUSE mounts have no locks, or lose their lock server."""
    return LongboatError(
        f"cannot lock files in {run_dir}: {error.strerror}; without a lock it is unknown which process drives the run",
        "keep runs on another file system, e.g. a local disk: export LONGBOAT_HOME=DIRECTORY",
    )
