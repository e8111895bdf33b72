"""Follows a rank's log and report file to find its progress, its checkpoints and an uncaught exception.

Progress comes from `longboat.report(...)` (the rank's report file) or from a printed line

    longboat: step=10 total=100 loss=0.31

at the beginning of a line: `longboat:`, then NAME=NUMBER pairs. Memory use stays flat whatever the rank
prints: only the possible start of such a line is kept between two reads.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from typing import Any, Dict, List, NamedTuple, Tuple, Union

Point = Dict[str, Union[int, float, str]]

MARK = b"longboat: "
LONGEST = 4096
"""Longer lines are not progress lines."""
CHUNK = 1 << 20
AT_ONCE = 64
"""Chunks read at one look, so that a rank that prints a lot does not block its agent."""
COUNTS = ("step", "total")
MOST = 1 << 63
"""Integers beyond this are not steps."""

_PAIR = re.compile(
    rb"^([A-Za-z_][A-Za-z0-9_./-]*)=([-+]?(?:\d[\d_]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf))$"
)


def parse_line(line: bytes) -> Point:
    """The numbers of a printed progress line; empty if it is not one."""
    point: Point = {}
    if not line.startswith(MARK):
        return point
    for text in line[len(MARK) :].split():
        pair = _PAIR.match(text)
        if pair is None:
            return {}
        name, number = pair.group(1).decode(), pair.group(2).decode().replace("_", "")
        point[name] = int(number) if re.fullmatch(r"[-+]?\d{1,18}", number) else float(number)
    return cleaned(point)


def cleaned(point: Dict[str, Any]) -> Point:
    """A point that the journal can hold: values that JSON has no number for become text, and steps become
    integers."""
    cleaned_point: Point = {}
    for name, value in point.items():
        if name in COUNTS:
            if isinstance(value, (int, float)) and abs(value) < MOST:
                cleaned_point[name] = int(value)
        elif isinstance(value, int) and abs(value) >= MOST:
            cleaned_point[name] = "inf" if value > 0 else "-inf"
        elif isinstance(value, float) and not math.isfinite(value):
            cleaned_point[name] = str(value)
        elif isinstance(value, (int, float, str)):
            cleaned_point[name] = value
    return cleaned_point


class FileTail:
    """Reads a growing file from an offset, in chunks."""

    def __init__(self, path: str, offset: int) -> None:
        self.path = path
        self.offset = offset
        self.behind = False
        """The last read stopped before the end of the file."""
        self._fd = -1

    def chunks(self) -> List[bytes]:
        if self._fd < 0:
            try:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return []
        chunks: List[bytes] = []
        while len(chunks) < AT_ONCE:
            data = os.pread(self._fd, CHUNK, self.offset)
            if data:
                self.offset += len(data)
                chunks.append(data)
            if len(data) < CHUNK:
                self.behind = False
                return chunks
        self.behind = True
        return chunks

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class UncaughtException(NamedTuple):
    """An exception that nothing in a Python program caught; its traceback is in the log."""

    pid: int
    at: float
    fails_rank: bool
    """It is the rank's own program, not one whose exit code another program judges."""


class RankOutput:
    """Progress of one rank, from its log and its report file."""

    def __init__(self, log: str, log_offset: int, reports: str, reports_offset: int) -> None:
        self._log = FileTail(log, log_offset)
        self._reports = FileTail(reports, reports_offset)
        self._line_start = b"\n"
        self._half_report = b""
        self.log, self.log_offset = log, log_offset
        self.exceptions: List[UncaughtException] = []
        """Exceptions that are ending programs of the rank; the reader empties it."""

    def news(self) -> Tuple[List[Point], List[Dict[str, Any]]]:
        """Points and checkpoint records since the last call; in order within each source."""
        points: List[Point] = []
        checkpoints: List[Dict[str, Any]] = []
        for chunk in self._reports.chunks():
            *lines, self._half_report = (self._half_report + chunk).split(b"\n")
            for line in lines:
                record = _object(line)
                if "checkpoint" in record:
                    checkpoints += _checkpoint(record["checkpoint"])
                    continue
                self.exceptions += _exception(record.get("exception"))
                point = cleaned(record)
                if point:
                    points.append(point)
        for chunk in self._log.chunks():
            points += self._printed(chunk)
        return points, checkpoints

    @property
    def behind(self) -> bool:
        """There may be more than the last call returned: do not stop reading yet."""
        return self._log.behind or self._reports.behind

    def close(self) -> None:
        self._log.close()
        self._reports.close()

    def _printed(self, chunk: bytes) -> List[Point]:
        text = self._line_start + chunk
        points: List[Point] = []
        at = text.find(b"\n" + MARK)
        kept = -1
        while at >= 0:
            end = text.find(b"\n", at + 1)
            if end < 0:
                kept = at
                break
            point = parse_line(text[at + 1 : end].rstrip(b"\r"))
            if point:
                point["t"] = round(time.time(), 6)
                points.append(point)
            at = text.find(b"\n" + MARK, end)
        if kept >= 0 and len(text) - kept <= LONGEST:
            self._line_start = text[kept:]
        else:
            self._line_start = text[-len(MARK) :]
        return points


def _checkpoint(record: Any) -> List[Dict[str, Any]]:
    """The record if it is valid: users can write this file, and the driver must be able to read it."""
    if not isinstance(record, dict):
        return []
    types = {"step": int, "part": int, "of": int, "bytes": int, "path": str, "crc32": str}
    needed = ["step"] if record.get("error") else list(types)
    return [record] if all(isinstance(record.get(name), types[name]) for name in needed) else []


def _exception(record: Any) -> List[UncaughtException]:
    """The record if it is valid: users can write this file."""
    try:
        return [UncaughtException(int(record["pid"]), float(record["t"]), bool(record["fails_rank"]))]
    except (KeyError, TypeError, ValueError, OverflowError):
        return []


def _object(line: bytes) -> Dict[str, Any]:
    try:
        data: Any = json.loads(line)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}
