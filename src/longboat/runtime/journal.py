"""The run's journal: `events.jsonl`, one JSON object a line, written by the driver alone.

Every line has `t` (seconds since the epoch), `n` (1, 2, 3 ... without a gap) and `ev`, one of
the names below. Where an event speaks of a rank it has `stage`, `role`, `rank`, `gen`.

| ev | further keys | meaning |
|---|---|---|
| run.started | run, name, pid, host, engine, contained, resumed, order, again, left_out | the driver took the run up |
| stage.started | stage, attempt, round | a stage's gang is being formed |
| stage.reused | stage | `--resume`: the stage had passed before and is not run again |
| gen.started | stage, gen, attempt, round, merging, reason, resume_step | all ranks are told to start |
| rank.started | + restart, pid, log_offset, report_offset | the user's process runs |
| rank.report | + restart, word, points: [{t, step, total, <metric>: number ...}] | what the rank reported, in order |
| rank.stacks | + states, text | what a rank that hangs was doing |
| checkpoint | stage, gen, step, path, owner, bytes, seconds | every part is on disk: a new life resumes from here |
| rank.ended | + restart, state, code, signal, cause, because | it ended: succeeded, failed, killed, stopped, lost |
| gen.ended | stage, gen, state, cause, consequences | every process of the generation has ended |
| stage.ready | stage, url, page, grpc, model, example, prediction ... | a server answers; the next may begin |
| stage.ended | stage, state, attempts, cause, note | state: succeeded, failed, stopped |
| verdict | stage, of, metric, value, at_least, at_most, passed, attempt | a gate was asked |
| stopping | by, grace | somebody asked the run to stop |
| run.serving | | all is done and the servers go on |
| note | text, level | something a reader should know; level: info, warning |
| run.ended | state, code, cause | state: succeeded, failed, stopped, gate_missed; code: the exit code |

`resume_step` is the step that a generation resumes after: what earlier ones reported of later
steps is superseded. `because` names the rank whose fall brought this one down (`role-rank`): a consequence, not a
cause. `cause` is a causes.Cause as an object. `word` numbers what an agent said in a life of its rank: what it says
again, lest it was lost with a driver, is written once. Unknown events and unknown keys are skipped by
readers; a half-written last line is normal and skipped too. An event before `run.ended` may be
followed by another `run.started`: the run was resumed.

A full disk must not make the journal unreadable: a reserve file beside it is given up for the
last events, a part of it for `run.ended` alone (ranks that still run may take the rest first), and a
line that does not fit whole is taken back.

A secret is `***` in what the writer is given as text, not in the names by which events are told apart and
found: a password that is also the name of a stage must not cost the run its state.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import time
from enum import Enum
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Optional, Tuple

from longboat.runtime import run_layout
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.plan import build

FILE = run_layout.JOURNAL
RESERVE = ".journal-reserve"
RESERVE_BYTES = 256 * 1024
LAST_BYTES = 64 * 1024
"""Of the reserve, for the event that ends the run."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""What a system says of a disk that is full."""

Event = Dict[str, Any]

_PIECE = 256 * 1024
"""Bytes that are read at once."""

_NEVER = 1e11
"""Seconds since the epoch that no clock shows: a time beyond is damage, and counts as none."""


SHORTEST_SECRET = 4
"""Characters. A shorter value is in too many words to be hidden."""

_NAMES = frozenset(
    {
        "run",
        "name",
        "host",
        "engine",
        "contained",
        "version",
        "order",
        "again",
        "left_out",
        "stage",
        "role",
        "of",
        "metric",
        "state",
        "kind",
        "because",
        "level",
    }
)
"""Keys whose values are words of ours or of the job file, never of what a rank printed."""


class JournalFull(OSError):
    """The disk is full; the event that would not fit was not written."""


class JournalWriter:
    """Appends events. One per run at a time: the driver holds the run's lock."""

    def __init__(self, run_dir: str, clock: Callable[[], float] = time.time, redact: Tuple[str, ...] = ()) -> None:
        path = os.path.join(run_dir, FILE)
        self._reserve = os.path.join(run_dir, RESERVE)
        self._clock = clock
        self._secrets = sorted((s for s in redact if len(s) >= SHORTEST_SECRET), key=len, reverse=True)
        self.full = False
        self._count = _repair(path)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._reserve_space()

    def write(self, ev: str, **keys: Any) -> Event:
        event: Event = {"t": round(self._clock(), 6), "n": self._count + 1, "ev": ev}
        event.update(self._hidden({key: plain(value) for key, value in keys.items() if value is not None}))
        text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
        self._append(text.encode("utf-8", "backslashreplace") + b"\n", last=ev == "run.ended")
        self._count += 1
        return event

    def close(self) -> None:
        os.close(self._fd)
        try:
            os.unlink(self._reserve)
        except OSError:
            pass

    def _hidden(self, value: Any) -> Any:
        """The value without secrets in its texts."""
        if not self._secrets:
            return value
        if isinstance(value, str):
            for secret in self._secrets:
                value = value.replace(secret, "***")
        elif isinstance(value, dict):
            value = {key: held if key in _NAMES else self._hidden(held) for key, held in value.items()}
        elif isinstance(value, (list, tuple)):
            value = [self._hidden(held) for held in value]
        return value

    def _append(self, line: bytes, last: bool) -> None:
        while True:
            try:
                return self._write_whole(line)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                self.full = True
                if not self._give_up(last):
                    raise JournalFull(error.errno, "no space left for the journal") from None

    def _give_up(self, last: bool) -> bool:
        """Frees the reserve, or what of it is not for the last event; False when there is nothing to free."""
        try:
            if last:
                os.unlink(self._reserve)
                return True
            if os.path.getsize(self._reserve) <= LAST_BYTES:
                return False
            os.truncate(self._reserve, LAST_BYTES)
            return True
        except OSError:
            return False

    def _write_whole(self, line: bytes) -> None:
        start = os.fstat(self._fd).st_size
        done = 0
        try:
            while done < len(line):
                done += os.write(self._fd, line[done:])
        except OSError:
            os.ftruncate(self._fd, start)
            raise

    def _reserve_space(self) -> None:
        try:
            fd = os.open(self._reserve, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, b"\0" * RESERVE_BYTES)
            finally:
                os.close(fd)
        except OSError:
            pass


def plain(value: Any) -> Any:
    """A value as JSON can hold it: a Cause without its empty parts, an enum as its value."""
    if isinstance(value, Cause):
        found = {}
        for field in dataclasses.fields(value):
            held = getattr(value, field.name)
            if held != field.default:
                found[field.name] = held.value if isinstance(held, Enum) else held
        return found
    if isinstance(value, Enum):
        return value.value
    return value


def cause_of(event: Event) -> Optional[Cause]:
    """The cause in an event, read leniently: a kind this version does not know is internal."""
    data = event.get("cause")
    if not isinstance(data, dict):
        return None
    known = {kind.value for kind in CauseKind}
    data = dict(data, kind=CauseKind(data["kind"]) if data.get("kind") in known else CauseKind.INTERNAL)
    data.setdefault("message", "")
    return build(Cause, data)


def read(run_dir: str) -> List[Event]:
    """All whole events so far; none when the journal does not exist yet."""
    return list(stream(run_dir))


def last(run_dir: str) -> Event:
    """The newest whole event; an empty one when there is none yet."""
    found: Event = {}
    for event in stream(run_dir):
        found = event
    return found


def stream(run_dir: str) -> Iterator[Event]:
    """The same, one after the other: a long training's journal is larger than a driver's memory."""
    reader = JournalReader(run_dir)
    try:
        yield from reader.poll()
    finally:
        reader.close()


class JournalReader:
    """Follows a journal that may still grow: each poll gives the events since the last one."""

    def __init__(self, run_dir: str) -> None:
        self._path = os.path.join(run_dir, FILE)
        self._file: Optional[BinaryIO] = None
        self._half = b""

    def poll(self) -> Iterator[Event]:
        if self._file is None:
            try:
                self._file = open(self._path, "rb")
            except FileNotFoundError:
                return
        while data := self._file.read(_PIECE):
            *lines, self._half = (self._half + data).split(b"\n")
            for line in lines:
                event = _parse(line)
                if event is not None:
                    yield event

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _parse(line: bytes) -> Optional[Event]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("ev"), str):
        return None
    t = event.get("t", 0.0)
    if not isinstance(t, (int, float)) or not 0 <= t < _NEVER:
        del event["t"]
    return event


def _repair(path: str) -> int:
    """Cuts off a half-written last line (the writer was killed) and counts the events."""
    try:
        with open(path, "r+b") as file:
            lines = whole = size = 0
            while data := file.read(_PIECE):
                lines += data.count(b"\n")
                whole = size + data.rfind(b"\n") + 1 if b"\n" in data else whole
                size += len(data)
            if whole != size:
                file.truncate(whole)
            return lines
    except FileNotFoundError:
        return 0
