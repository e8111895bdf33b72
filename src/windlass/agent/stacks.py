"""What a process that hangs is doing: its state, and the stacks that Python wrote on request.

Ships into strangers' images: standard library only, Python 3.9.
"""

from __future__ import annotations

import os

MOST = 64 * 1024
STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for a disk or device",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "dead, not yet collected",
}


def state_of(pid: int) -> str:
    """In words, with the command: `stopped by a signal (python train.py)`."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return "gone"
    letter = stat[stat.rindex(b")") + 2 :][:1].decode()
    return f"{STATES.get(letter, letter)} ({command[:120]})"


def catches(pid: int, signum: int) -> bool:
    """Has the process a handler for the signal?"""
    try:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith("SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    except (OSError, ValueError):
        pass
    return False


def size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def tidy(path: str) -> None:
    """A rank that was never asked leaves no file."""
    if os.path.exists(path) and size(path) == 0:
        try:
            os.unlink(path)
            os.rmdir(os.path.dirname(path))
        except OSError:
            pass


def written(path: str, start: int) -> str:
    """What was written behind an offset, the beginning of it if it is long."""
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(MOST).decode("utf-8", "replace")
    except OSError:
        return ""
