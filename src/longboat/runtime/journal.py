"""The run's journal: `events.jsonl`, one JSON object a line, written by the driver alone.

Every line has `t` (seconds since the epoch), `n` (1, 2, 3 ... without a gap) and `ev`, one of the names below. Events
about a rank have `stage`, `role`, `rank`, `gen`.

| ev | more keys | meaning |
|---|---|---|
| run.started | run, name, pid, host, engine, contained, resumed, order, again, left_out | a driver started on the run |
| stage.started | stage, attempt, round | a stage's gang is being formed |
| stage.reused | stage | `--resume`: the stage passed before and does not run again |
| gen.started | stage, gen, attempt, round, merging, reason, resume_step | all ranks are ordered to start |
| rank.started | + restart, pid, log_offset, report_offset | the user's process runs |
| rank.report | + restart, word, points: [{t, step, total, <metric>: number ...}] | what the rank reported, in order |
| rank.stacks | + states, text | what a hung rank was doing |
| checkpoint | stage, gen, step, path, owner, bytes, seconds | all parts are on disk: a restart resumes from it |
| checkpoint.damaged | stage, gen, step, path, owner, reason, resume_step | it (without step: their list) is damaged |
| rank.ended | + restart, state, code, signal, cause, because | it ended: succeeded, failed, killed, stopped, lost |
| gen.ended | stage, gen, state, cause, consequences | every process of the generation has ended |
| stage.ready | stage, url, page, grpc, model, example, prediction ... | a server responds; the next stage may start |
| stage.ended | stage, state, attempts, cause, note | state: succeeded, failed, stopped |
| verdict | stage, of, metric, value, at_least, at_most, passed, attempt | a gate was evaluated |
| stopping | by, grace | a user stops the run |
| run.serving | | all stages are done and the servers keep running |
| note | text, level | a note for readers; level: info, warning |
| run.ended | state, code, cause | state: succeeded, failed, stopped, gate_missed; code: the exit code |

`resume_step` is the step that a generation resumes after, none if it starts from the beginning; reports of earlier
generations about later steps are superseded. `because` names the rank (`role-rank`) whose failure stopped this one: it
is a consequence, not a cause. `cause` is a causes.Cause as an object. `word` numbers an agent's messages in an
incarnation: a message that is sent again, because it may have been lost with a driver, is written once. Readers skip
unknown events and keys, and a half-written last line. Another `run.started` may follow any event: the run was resumed.

Events in FLUSHED are on disk when `write` returns: after a power failure, the run continues from them.

A full disk does not make the journal unreadable: a reserve file next to it is freed for the last events, a part of it
only for `run.ended` (running ranks may take the rest first), and a line that does not fit is removed again.

The writer replaces secrets in texts by `***`, but not in names that identify things: a password that is also the name
of a stage must not cost the run its state.
"""

from __future__ import annotations

import errno
import json
import os
import time
from enum import Enum
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

from longboat.runtime import debug_log, run_layout
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.light_dataclasses import fields
from longboat.runtime.plan import build

FILE = run_layout.JOURNAL
RESERVE = ".journal-reserve"
RESERVE_BYTES = 256 * 1024
LAST_BYTES = 64 * 1024
"""Part of the reserve that is kept for the event that ends the run."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors that mean a full disk."""

FLUSHED = frozenset({"gen.started", "checkpoint", "checkpoint.damaged", "verdict", "run.ended"})
"""Events after which the journal is flushed to disk."""

Event = Dict[str, Any]

_PIECE = 256 * 1024
"""Bytes read at once."""

_NEVER = 1e11
"""Seconds since the epoch; a later time is damage, and is ignored."""


SHORTEST_SECRET = 4
"""Characters. Shorter values occur in too many texts to be hidden."""

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
"""Keys with names from Longboat or the job file, never with output of a rank."""


class JournalFull(OSError):
    """The disk is full; the event was not written."""


class JournalWriter:
    """Appends events. One writer for each run: the driver holds the run's lock."""

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
        if ev in FLUSHED:
            self._flush()
        if ev != "rank.report":
            debug_log.info("journal: %s", text)
        return event

    def close(self) -> None:
        os.close(self._fd)
        try:
            os.unlink(self._reserve)
        except OSError:
            pass

    def _hidden(self, value: Any) -> Any:
        """The value with secrets replaced in its texts."""
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
                return self._write_line(line)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                self.full = True
                if not self._free_reserve(last):
                    raise JournalFull(error.errno, "no space left for the journal") from None

    def _flush(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            if error.errno not in (*FULL, errno.EINVAL):  # EINVAL: a file system that cannot flush
                raise
            self.full = self.full or error.errno in FULL

    def _free_reserve(self, last: bool) -> bool:
        """Free the reserve, or the part that is not for the last event; False if there is nothing to free."""
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

    def _write_line(self, line: bytes) -> None:
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


def state_text(state: str) -> str:
    """What a run did that has this state, for sentences: it `succeeded`, `was stopped`, `is running`."""
    ended = {"succeeded": "succeeded", "failed": "failed", "stopped": "was stopped", "gate_missed": "missed its gate"}
    return ended.get(state, f"is {state}")


def plain(value: Any) -> Any:
    """A value for JSON: a Cause without its empty fields, an enum as its value."""
    if isinstance(value, Cause):
        keys = {}
        for field in fields(value):
            held = getattr(value, field.name)
            if held != field.default:
                keys[field.name] = held.value if isinstance(held, Enum) else held
        return keys
    if isinstance(value, Enum):
        return value.value
    return value


def cause_of(event: Mapping[str, Any]) -> Optional[Cause]:
    """The cause in an event, read leniently: an unknown kind becomes internal."""
    data = event.get("cause")
    if not isinstance(data, dict):
        return None
    known = {kind.value for kind in CauseKind}
    data = dict(data, kind=CauseKind(data["kind"]) if data.get("kind") in known else CauseKind.INTERNAL)
    data.setdefault("message", "")
    return build(Cause, data)


def read(run_dir: str) -> List[Event]:
    """All complete events so far; none if the journal does not exist yet."""
    return list(stream(run_dir))


def last(run_dir: str) -> Event:
    """The newest complete event; empty if there is none yet."""
    newest: Event = {}
    for event in stream(run_dir):
        newest = event
    return newest


def stream(run_dir: str) -> Iterator[Event]:
    """All complete events, one after the other: the journal of a long training may not fit into memory."""
    reader = JournalReader(run_dir)
    try:
        yield from reader.poll()
    finally:
        reader.close()


class JournalReader:
    """Follows a growing journal: each poll returns the events since the last one."""

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
    """Cut off a half-written last line (the writer was killed) and count the events."""
    try:
        with open(path, "r+b") as file:
            lines = complete = size = 0
            while data := file.read(_PIECE):
                lines += data.count(b"\n")
                complete = size + data.rfind(b"\n") + 1 if b"\n" in data else complete
                size += len(data)
            if complete != size:
                file.truncate(complete)
            return lines
    except FileNotFoundError:
        return 0
