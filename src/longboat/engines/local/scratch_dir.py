"""A run's scratch directory: the driver's socket, and TMPDIR for its ranks.

The driver removes it, or the supervisor if the driver was killed. If both were killed at once, the next run on this
machine removes it: a directory in use has a listening socket.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import time
from collections.abc import Mapping

from longboat.runtime.errors import LongboatError

SOCKET = "driver.sock"
PREFIX = "longboat-"
_NAME = re.compile(PREFIX + "[0-9a-f]{8}")
LONGEST = 100
"""Longest path of a socket, in bytes, that every system accepts."""
YOUNG = 60.0
"""Age in seconds below which a directory without a listener is kept: its driver may still be starting."""


def make(environ: Mapping[str, str]) -> str:
    parent = environ.get("TMPDIR") or "/tmp"
    if len(os.fsencode(os.path.join(parent, f"{PREFIX}12345678", SOCKET))) > LONGEST:
        parent = "/tmp"
    _sweep(parent)
    while True:
        path = os.path.join(parent, f"{PREFIX}{os.urandom(4).hex()}")
        try:
            os.mkdir(path, 0o700)
            return path
        except FileExistsError:
            continue
        except OSError as error:
            raise LongboatError(f"cannot create a directory in {parent}: {error.strerror}", "set TMPDIR") from None


def remove(path: str) -> None:
    import shutil

    shutil.rmtree(path, ignore_errors=True)


def _sweep(parent: str) -> None:
    try:
        names = [name for name in os.listdir(parent) if _NAME.fullmatch(name)]
    except OSError:
        return
    for name in names:
        path = os.path.join(parent, name)
        if _is_abandoned(path):
            remove(path)


def _is_abandoned(path: str) -> bool:
    try:
        info = os.lstat(path)
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or time.time() - info.st_mtime < YOUNG:
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(1.0)
            client.connect(os.path.join(path, SOCKET))
            return False
    except ConnectionRefusedError:
        return True
    except OSError:  # no socket in it: its driver was killed before it listened, or it is not one of ours
        return _is_empty(path)


def _is_empty(path: str) -> bool:
    try:
        return not os.listdir(path)
    except OSError:
        return False
