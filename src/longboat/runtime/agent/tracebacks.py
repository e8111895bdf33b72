"""Reading Python's tracebacks out of a log: which error, where in the user's own code, what came of what.

Text in, values out; nothing here decides why a process ended.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import List, Optional, Sequence, Tuple

_HEAD = re.compile(r"^(?P<before>.*?)(?P<group>Exception Group )?Traceback \(most recent call last\)")
_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+)(?:,? in (?P<name>.+))?$')
_ERROR = re.compile(r"^[A-Za-z_][\w.]*(?:: .*|:)?$")
_NAMED = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception)\b")
_INSIDE = re.compile(r"^\s+\|")
"""A line inside a group's bars: the traceback of a member has its head there."""
_MEMBER = re.compile(r"^\s+\+[-+]*-+ \d+ -+$")
_LIBRARY = re.compile(r"^<frozen |/site-packages/|/dist-packages/|/lib/python\d")
_THREAD = re.compile(r"^Exception in thread (?P<name>.+):$")
_CHAIN = "The above exception was the direct cause of the following exception:"
FATAL = "Fatal Python error: "


@dataclass(frozen=True)
class Traceback:
    """An error that ended a Python process, as its log has it."""

    error: str
    """`ValueError: text`, its first line."""
    frame: str
    """`file:line in function`: the innermost frame of the user's own code if any is, else the innermost."""
    behind: int = 0
    """How many lines the log has after the error's first line."""
    causes: Tuple[str, ...] = ()
    """Errors that it was raised from, the nearest first: `KeyError: 'x' at file:line in function`."""
    members: Tuple[str, ...] = ()
    """The errors of an exception group."""
    thread: str = ""
    """The thread that it ended, if it was not the main one."""


def last(lines: Sequence[str]) -> Optional[Traceback]:
    """The last traceback of a log; None when there is none."""
    heads = [i for i, line in enumerate(lines) if _HEAD.match(line) and not _INSIDE.match(line)]
    if not heads:
        return _headless(lines)
    found = _block(lines, heads[-1])
    if found is None:
        return None
    causes = []
    for before, after in zip(reversed(heads[:-1]), reversed(heads[1:])):
        cause = _block(lines[:after], before)
        if cause is None or not any(_CHAIN in line for line in lines[before:after]):
            break
        causes.append(f"{cause.error} at {cause.frame}")
    first = heads[-1 - len(causes)] - 1
    thread = _THREAD.match(lines[first]) if first >= 0 else None
    return replace(found, causes=tuple(causes), thread=thread["name"] if thread else "")


def fatal(lines: Sequence[str]) -> Tuple[str, str]:
    """(frame, error) of what Python wrote as a fatal signal struck it; empty when it did not."""
    begin = max((i for i, line in enumerate(lines) if line.startswith(FATAL)), default=-1)
    if begin < 0:
        return "", ""
    threads = [i for i, line in enumerate(lines) if i > begin and line.startswith(("Current thread ", "Stack ("))]
    frame = own = ""
    for line in lines[threads[0] + 1 :] if threads else ():
        match = _FRAME.match(line)
        if match is None:
            break
        frame = frame or _place(match)
        own = own or ("" if _LIBRARY.search(match["file"]) else _place(match))
    return own or frame, lines[begin]


def _block(lines: Sequence[str], head: int) -> Optional[Traceback]:
    """The traceback that begins at a line. What stands before its first word, a rank's number or a
    group's bars, stands before its other lines too."""
    match = _HEAD.match(lines[head])
    assert match is not None
    before = match["before"].replace("+", "|") if match["group"] else match["before"]
    frame = own = ""
    for number in range(head + 1, len(lines)):
        line = lines[number]
        line = line[len(before) :] if before and line.startswith(before) else line
        found = _FRAME.match(line)
        if found:
            frame = _place(found)
            own = own if _LIBRARY.search(found["file"]) else frame
        elif frame and not line.startswith(" "):
            if not _ERROR.match(line):
                return None
            members = _members(lines[number + 1 :]) if match["group"] else ()
            behind = 0 if members else len(lines) - number - 1
            return Traceback(line, own or frame, behind, members=members)
    return None


def _headless(lines: Sequence[str]) -> Optional[Traceback]:
    """A script that does not parse has no head; that of a very long traceback may be out of sight."""
    frame = own = ""
    found = None
    for number, line in enumerate(lines):
        match = _FRAME.match(line)
        if match:
            frame = _place(match)
            own = own if _LIBRARY.search(match["file"]) else frame
        elif frame and _NAMED.match(line):
            found = Traceback(line, own or frame, len(lines) - number - 1)
            frame = own = ""
    return found


def _members(lines: Sequence[str]) -> Tuple[str, ...]:
    found: List[str] = []
    wanted = False
    for line in lines:
        if _MEMBER.match(line):
            wanted = True
            continue
        text = line.lstrip().lstrip("|+ ") if line.lstrip().startswith(("|", "+")) else ""
        if wanted and text and _ERROR.match(text) and not text.startswith("Traceback"):
            found.append(text)
            wanted = False
    return tuple(found)


def _place(match: re.Match[str]) -> str:
    name = match["name"]
    return f"{match['file']}:{match['line']}" + (f" in {name}" if name else "")
