"""Stacks and state of a hung process, as Python and /proc show them."""

from __future__ import annotations

import os
import re
from typing import List, Tuple

MOST = 64 * 1024
_THREAD = re.compile(r"^(?P<current>Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)$')
STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for a disk or device",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "dead, not yet collected",
}


def state_of(pid: int) -> str:
    """State and command of a process: `stopped by a signal (python train.py)`."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return "gone"
    letter = _state_letter(stat)
    return f"{STATES.get(letter, letter)} ({command[:120]})"


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped the process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return _state_letter(file.read()) in ("T", "t")
    except OSError:
        return False


def _state_letter(stat: bytes) -> str:
    return stat[stat.rindex(b")") + 2 :][:1].decode()


def catches(pid: int, signum: int) -> bool:
    """Whether the process has a handler for the signal."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("SigCgt:"):
                    return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    except (OSError, ValueError):
        pass
    return False


def innermost(text: str, most: int = 4) -> Tuple[str, ...]:
    """The innermost frames of each process's main thread, one a line (`work.py:6 in update`), and the number of
    other threads."""
    frames: List[str] = []
    others = shown = 0
    for line in text.splitlines():
        thread = _THREAD.match(line)
        if thread:
            current = thread["current"] == "Current thread"
            others += not current
            shown = 0 if current else most
            continue
        frame = _FRAME.match(line)
        if frame and shown < most:
            shown += 1
            frames.append(f"{frame['file']}:{frame['line']} in {frame['name']}")
    if frames and others:
        frames.append(f"and {others} other thread{'s' if others > 1 else ''}")
    return tuple(frames)


def size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def tidy(path: str) -> None:
    """Remove an empty stacks file."""
    if os.path.exists(path) and size(path) == 0:
        try:
            os.unlink(path)
            os.rmdir(os.path.dirname(path))
        except OSError:
            pass


def written(path: str, start: int) -> str:
    """Text written after an offset, cut to the first MOST bytes."""
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(MOST).decode("utf-8", "replace")
    except OSError:
        return ""
