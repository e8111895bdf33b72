"""A run's scratch directory: the driver's socket, and TMPDIR for its ranks.

The driver removes it, or the keeper when the driver was killed. When both were killed at once,
the next run here does it: in a directory that is in use somebody listens.
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
"""Bytes that the path of a socket may have everywhere."""
YOUNG = 60.0
"""Seconds during which a directory in which nobody listens yet is left alone."""


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
        if _deserted(path):
            remove(path)


def _deserted(path: str) -> bool:
    try:
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or time.time() - found.st_mtime < YOUNG:
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.settimeout(1.0)
            asking.connect(os.path.join(path, SOCKET))
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
