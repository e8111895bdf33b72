"""Finds Python tracebacks in a log: the error, its place in the user's code, and its causes.

Text in, values out; nothing here decides why a process ended.
"""

from __future__ import annotations

import re
from typing import List, Optional, Sequence, Tuple

from longboat.runtime.light_dataclasses import dataclass, replace

_HEAD = re.compile(r"^(?P<before>.*?)(?P<group>Exception Group )?Traceback \(most recent call last\)")
_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+)(?:,? in (?P<name>.+))?$')
_ERROR = re.compile(r"^[A-Za-z_][\w.]*(?:: .*|:)?$")
_NAMED = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception)\b")
_INSIDE = re.compile(r"^\s+\|")
"""A line inside the bars of an exception group: the traceback of a member starts there."""
_MEMBER = re.compile(r"^\s+\+[-+]*-+ \d+ -+$")
_LIBRARY = re.compile(r"^<frozen |/site-packages/|/dist-packages/|/lib/python\d")
_THREAD = re.compile(r"^Exception in thread (?P<name>.+):$")
_CHAIN = "The above exception was the direct cause of the following exception:"
FATAL = "Fatal Python error: "


@dataclass(frozen=True)
class Traceback:
    """An error in a log."""

    error: str
    """`ValueError: text`, its first line."""
    frame: str
    """`file:line in function`: the innermost frame of the user's code if there is one, else the innermost."""
    behind: int = 0
    """Lines in the log after the error's first line."""
    causes: Tuple[str, ...] = ()
    """Errors that it was raised from, nearest first: `KeyError: 'x' at file:line in function`."""
    members: Tuple[str, ...] = ()
    """The errors of an exception group."""
    thread: str = ""
    """The thread that it ended, if not the main one."""


def last(lines: Sequence[str]) -> Optional[Traceback]:
    """The last traceback of a log; None if there is none."""
    heads = [i for i, line in enumerate(lines) if _HEAD.match(line) and not _INSIDE.match(line)]
    if not heads:
        return _headless(lines)
    traceback = _block(lines, heads[-1])
    if traceback is None:
        return None
    causes = []
    for before, after in zip(reversed(heads[:-1]), reversed(heads[1:])):
        cause = _block(lines[:after], before)
        if cause is None or not any(_CHAIN in line for line in lines[before:after]):
            break
        causes.append(f"{cause.error} at {cause.frame}")
    first = heads[-1 - len(causes)] - 1
    thread = _THREAD.match(lines[first]) if first >= 0 else None
    return replace(traceback, causes=tuple(causes), thread=thread["name"] if thread else "")


def fatal(lines: Sequence[str]) -> Tuple[str, str]:
    """(frame, error) that Python printed on a fatal signal; empty if it did not."""
    begin = max((i for i, line in enumerate(lines) if line.startswith(FATAL)), default=-1)
    if begin < 0:
        return "", ""
    threads = [i for i, line in enumerate(lines) if i > begin and line.startswith(("Current thread ", "Stack ("))]
    frame = user_frame = ""
    for line in lines[threads[0] + 1 :] if threads else ():
        match = _FRAME.match(line)
        if match is None:
            break
        frame = frame or _place(match)
        user_frame = user_frame or ("" if _LIBRARY.search(match["file"]) else _place(match))
    return user_frame or frame, lines[begin]


def _block(lines: Sequence[str], head: int) -> Optional[Traceback]:
    """The traceback that starts at a line. A prefix of that line, such as a rank's number or a group's bars, is
    stripped from its other lines too."""
    match = _HEAD.match(lines[head])
    assert match is not None
    before = match["before"].replace("+", "|") if match["group"] else match["before"]
    frame = user_frame = ""
    for number in range(head + 1, len(lines)):
        line = lines[number]
        line = line[len(before) :] if before and line.startswith(before) else line
        frame_match = _FRAME.match(line)
        if frame_match:
            frame = _place(frame_match)
            user_frame = user_frame if _LIBRARY.search(frame_match["file"]) else frame
        elif frame and not line.startswith(" "):
            if not _ERROR.match(line):
                return None
            members = _members(lines[number + 1 :]) if match["group"] else ()
            behind = 0 if members else len(lines) - number - 1
            return Traceback(line, user_frame or frame, behind, members=members)
    return None


def _headless(lines: Sequence[str]) -> Optional[Traceback]:
    """A traceback without its first line: of a syntax error, or longer than the log's tail."""
    frame = user_frame = ""
    traceback = None
    for number, line in enumerate(lines):
        match = _FRAME.match(line)
        if match:
            frame = _place(match)
            user_frame = user_frame if _LIBRARY.search(match["file"]) else frame
        elif frame and _NAMED.match(line):
            traceback = Traceback(line, user_frame or frame, len(lines) - number - 1)
            frame = user_frame = ""
    return traceback


def _members(lines: Sequence[str]) -> Tuple[str, ...]:
    errors: List[str] = []
    wanted = False
    for line in lines:
        if _MEMBER.match(line):
            wanted = True
            continue
        text = line.lstrip().lstrip("|+ ") if line.lstrip().startswith(("|", "+")) else ""
        if wanted and text and _ERROR.match(text) and not text.startswith("Traceback"):
            errors.append(text)
            wanted = False
    return tuple(errors)


def _place(match: re.Match[str]) -> str:
    name = match["name"]
    return f"{match['file']}:{match['line']}" + (f" in {name}" if name else "")
