"""Reads and follows the log files of all ranks of a run.

A rank writes directly to its file, and files only grow, so a position is an offset. Files are opened only while there
is something to read: a run of a thousand ranks does not need a thousand descriptors. Files are read in pieces, so
memory does not depend on their size. Pieces hold complete lines, so that output of several ranks can be mixed. The CLI
formats the lines.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from longboat.runtime import run_layout
from longboat.runtime.journal import Event
from longboat.runtime.light_dataclasses import dataclass

PIECE = 1 << 20
"""Bytes read at a time from one file."""
LONGEST = 16 << 20
"""Maximum length of a line; longer ones are split."""
ROUND = 8 << 20
"""Bytes returned by one poll of all files, so that a follower can do its other work in between."""
BAR = 2.0
"""Seconds between two updates of a progress bar that redraws one line."""

BACK = 1 << 16
"""Bytes read at a time when reading backwards."""


@dataclass(frozen=True, order=True)
class LogSource:
    """One rank's log."""

    stage: str
    role: str
    rank: int

    @property
    def name(self) -> str:
        return f"{self.role}-{self.rank}"


@dataclass(frozen=True)
class LogPiece:
    """Complete lines of one rank, each with a newline (the very last one may lack it)."""

    source: LogSource
    data: bytes


@dataclass(frozen=True)
class LogLine:
    stage: str
    role: str
    rank: int
    text: bytes
    """Without its newline."""


@dataclass(frozen=True)
class LogFilter:
    """Selection of stages, roles and ranks; an empty field selects all."""

    stages: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()

    def takes(self, source: LogSource) -> bool:
        return (
            (not self.stages or source.stage in self.stages)
            and (not self.roles or source.role in self.roles)
            and (not self.ranks or source.rank in self.ranks)
        )


Begin = Callable[[LogSource, Path], "int | None"]
"""Start offset in an existing log; None: at its end."""


def sources(run: Path, order: Iterable[str] = ()) -> dict[LogSource, int]:
    """The existing logs and their sizes: stages in the given order, then ranks by role and number."""
    logs: dict[LogSource, int] = {}
    try:
        with os.scandir(run / "logs") as entries:
            stages = [entry.name for entry in entries if entry.is_dir()]
    except OSError:
        return logs
    positions = {name: position for position, name in enumerate(order)}
    for stage in sorted(stages, key=lambda name: (positions.get(name, len(positions)), name)):
        sizes: dict[LogSource, int] = {}
        with os.scandir(run / "logs" / stage) as entries:
            for entry in entries:
                role, dash, number = entry.name.removesuffix(".log").rpartition("-")
                if dash and number.isdecimal() and entry.name.endswith(".log"):
                    sizes[LogSource(stage, role, int(number))] = entry.stat().st_size
        logs.update((source, sizes[source]) for source in sorted(sizes))
    return logs


def path_of(run: Path, source: LogSource) -> Path:
    return Path(run_layout.log(str(run), source.stage, source.role, source.rank))


def tail_offset(path: Path, lines: int) -> int:
    """Offset of the last N lines, found by reading backwards."""
    with open(path, "rb") as file:
        end = position = file.seek(0, os.SEEK_END)
        if lines <= 0:
            return end
        left = lines
        while position > 0:
            start = max(0, position - BACK)
            file.seek(start)
            block = file.read(position - start)
            at = len(block)
            if position == end and block.endswith(b"\n"):
                at -= 1
            while (at := block.rfind(b"\n", 0, at)) >= 0:
                left -= 1
                if left == 0:
                    return start + at + 1
            position = start
        return 0


def since_offsets(events: Iterable[Event], since: float) -> Callable[[LogSource], int | None]:
    """Start offsets that include everything written after a time.

    Lines have no timestamps; the journal only has the start of each process. So a rank starts at the process that was
    running at that time, or else at its first start after it. None: the rank wrote nothing after that time.
    """
    chosen: dict[LogSource, int | None] = {}
    open_at: dict[LogSource, int] = {}
    for event in events:
        try:
            source = LogSource(event["stage"], event["role"], event["rank"])
            if event["ev"] == "rank.started":
                offset = int(event.get("log_offset", 0))
                if event["t"] >= since:
                    if chosen.get(source) is None:
                        chosen[source] = open_at.get(source, offset)
                else:
                    open_at[source] = offset
                    chosen[source] = None
            elif event["ev"] == "rank.ended" and event["t"] < since:
                open_at.pop(source, None)
        except (KeyError, TypeError, ValueError):
            continue
    for source, offset in open_at.items():
        if chosen.get(source) is None:
            chosen[source] = offset
    return lambda source: chosen.get(source, 0)


class LogTail:
    """An offset in one rank's log, and the incomplete line before it."""

    __slots__ = ("_half", "_shown", "offset", "path")

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        self._half = b""
        self._shown = 0.0

    def read(self) -> bytes:
        """The next complete lines; empty if there are none yet."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                data = file.read(PIECE)
        except FileNotFoundError:
            return b""
        self.offset += len(data)
        cut = data.rfind(b"\n") + 1
        if not cut:
            self._half = _shorter_bar(self._half + data)
            if len(self._half) < LONGEST:
                return b""
            return self.rest()
        complete = self._half + data[:cut] if self._half else data[:cut]
        self._half = data[cut:]
        return complete

    def rest(self) -> bytes:
        """The incomplete last line, once everything is read, with a newline added."""
        half, self._half = self._half, b""
        return half + b"\n" if half else b""

    def bar(self, now: float) -> bytes:
        """The latest state of a progress bar that redraws its line, every BAR seconds."""
        if b"\r" not in self._half or now - self._shown < BAR:
            return b""
        first, self._shown = not self._shown, now
        cut = self._half.rstrip(b"\r").rfind(b"\r")
        if first or cut < 0:
            return b""
        state, self._half = settle(self._half[:cut]), self._half[cut + 1 :]
        return state + b"\n" if state else b""


def settle(line: bytes) -> bytes:
    """The visible part of a line that was redrawn with carriage returns."""
    line = line.rstrip(b"\r")
    return line[line.rfind(b"\r") + 1 :]


def settled(data: bytes) -> bytes:
    """Complete lines, each in its last state."""
    if b"\r" not in data:
        return data
    return b"\n".join(map(settle, data.split(b"\n")))


def _shorter_bar(half: bytes) -> bytes:
    """The line without its past states, so that an endless progress bar does not fill the memory."""
    if len(half) < BACK or b"\r" not in half:
        return half
    body = half.rstrip(b"\r")
    return half[body.rfind(b"\r") + 1 :]


class LogFollower:
    """Follows the selected logs of a run: each `poll` returns what was written since the last."""

    def __init__(self, run: Path, choice: LogFilter | None = None, order: Iterable[str] = ()) -> None:
        self._run = run
        self._choice = choice or LogFilter()
        self._order = tuple(order)
        self._tails: dict[LogSource, LogTail] = {}
        self._turn = 0
        self.behind = False
        """Whether the last poll left something unread."""

    def begin(self, start: Begin) -> None:
        """Set the start offset of each existing log; None skips what it holds so far."""
        for source, size in sources(self._run, self._order).items():
            path = path_of(self._run, source)
            offset = start(source, path)
            self._tails[source] = LogTail(path, size if offset is None else offset)

    def poll(self, last: bool = False) -> Iterator[LogPiece]:
        """New complete lines, rank by rank, about ROUND bytes per call except for the last one."""
        budget, self.behind = ROUND, False
        now = time.monotonic()
        sizes = [
            (source, size) for source, size in sources(self._run, self._order).items() if self._choice.takes(source)
        ]
        if not last:
            sizes = sizes[self._turn % len(sizes) :] + sizes[: self._turn % len(sizes)] if sizes else []
        for index, (source, size) in enumerate(sizes):
            tail = self._tails.get(source)
            if tail is None:
                tail = self._tails[source] = LogTail(path_of(self._run, source))
            while tail.offset < size:
                before = tail.offset
                data = tail.read()
                budget -= tail.offset - before
                if data:
                    yield LogPiece(source, data)
                if tail.offset == before or not last:
                    break
            data = tail.rest() if last else tail.bar(now)
            if data:
                yield LogPiece(source, data)
            self.behind = self.behind or tail.offset < size
            if budget <= 0 and not last:
                self._turn += index + 1
                self.behind = True
                return
        self._turn = 0


def read(
    run: Path,
    choice: LogFilter | None = None,
    order: Iterable[str] = (),
    begin: Begin | None = None,
) -> Iterator[LogPiece]:
    """Everything written so far, rank by rank."""
    follower = LogFollower(run, choice, order)
    if begin is not None:
        follower.begin(begin)
    yield from follower.poll(last=True)


def follow(follower: LogFollower, over: Callable[[], bool], pause: float = 0.1) -> Iterator[LogPiece]:
    """Everything written until the run ends, including its last output."""
    while True:
        ended = over()
        if ended:
            yield from follower.poll(last=True)
            return
        yield from follower.poll()
        if not follower.behind:
            time.sleep(pause)


def lines(pieces: Iterable[LogPiece]) -> Iterator[LogLine]:
    """The lines of the pieces, without newlines."""
    for piece in pieces:
        source = piece.source
        for text in piece.data.removesuffix(b"\n").split(b"\n"):
            yield LogLine(source.stage, source.role, source.rank, text)


def raw(run: Path, source: LogSource, offset: int) -> Iterator[bytes]:
    """The bytes of one log from an offset on, exactly as written."""
    try:
        with open(path_of(run, source), "rb") as file:
            file.seek(offset)
            while data := file.read(PIECE):
                yield data
    except FileNotFoundError:
        return


def beginning(tail: int | None = None, since: Callable[[LogSource], int | None] | None = None) -> Begin:
    """Start offsets for --tail and --since together: the later of the two."""

    def place(source: LogSource, path: Path) -> int | None:
        offset = since(source) if since is not None else 0
        if tail is not None and offset is not None:
            offset = max(offset, tail_offset(path, tail))
        return offset

    return place
