"""Who drives a run: the process that holds the lock on its `driver.lock`.

A POSIX lock belongs to one process, is not inherited by a fork and ends with its holder, however
that dies; so neither a stale file nor a reused process id can lie about a run being alive. The
process that holds it must not open the file a second time: closing that would drop the lock.
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
"""struct flock on Linux and macOS: its layout, a write lock on the whole file, where type and holder stand."""


def try_take(run_dir: str) -> Optional[int]:
    """Makes this process the run's driver: a descriptor that must stay open, or None when another
    process is."""
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
    """The same, or an error that says so."""
    fd = try_take(run_dir)
    if fd is None:
        name = os.path.basename(run_dir)
        raise LongboatError(f"run {name} is being driven by another process", f"watch it: longboat attach {name}")
    return fd


def holder(run_dir: str) -> int:
    """Process id of the run's driver, 0 when nobody drives it; -1 when it cannot be told from here
    who does (another PID namespace). Asks without taking the lock."""
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
    """Some NFS, Lustre and FUSE mounts have no locks, or lose the server that keeps them."""
    return LongboatError(
        f"files in {run_dir} cannot be locked, so nobody can tell who drives the run: {error.strerror}",
        "keep runs on another file system, a local disk for one: `export LONGBOAT_HOME=DIRECTORY`",
    )
