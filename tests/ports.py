"""Ports that a test hands to a program which is to listen on them later.

Each is claimed by a locked file for the life of this process, so that no other test is given it meanwhile, in whatever
process that runs. They are below what the kernel gives to whoever asks for any port, and below a cluster's node ports.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

FIRST, LAST = 20000, 29999

_claims: list[int] = []
"""Open files: closing one gives its port back."""


def free_port() -> int:
    """A port that nobody listens on, and that is nobody else's until this process ends."""
    for _ in range(1000):
        port = FIRST + secrets.randbelow(LAST - FIRST + 1)
        if _claimed(port) and _unused(port):
            return port
    raise AssertionError(f"no port from {FIRST} to {LAST} is free")


def _claimed(port: int) -> bool:
    try:
        claim = os.open(_directory() / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError:
        return False  # another user's
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(claim)
        return False
    _claims.append(claim)
    return True


def _unused(port: int) -> bool:
    with socket.socket() as trial:
        try:
            trial.bind(("", port))
        except OSError:
            return False
    return True


def _directory() -> Path:
    path = Path(tempfile.gettempdir()) / "longboat-test-ports"
    with suppress(FileExistsError):
        path.mkdir()
        path.chmod(0o1777)
    return path
