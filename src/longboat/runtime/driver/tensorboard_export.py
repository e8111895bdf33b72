"""A run as TensorBoard can read it: what ranks reported as event files, and beside them the event files of the stages.

Everything stands below `board/` in the run: `board/STAGE/ROLE-RANK/` holds the reports of one rank (`round-N` below it
where a stage has rounds), `board/STAGE/output` leads to what the stage wrote itself. The files are a pure function of
the journal: the same events give the same bytes. So a second viewer may go on where the first one stopped, and one
that was killed in the middle of a record does no harm. One viewer at a time writes; the others only look.

TensorBoard itself is started elsewhere.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass, field
from pathlib import Path

from longboat.runtime import journal, run_layout, tensorboard
from longboat.runtime.errors import LongboatError
from longboat.runtime.journal import Event

DIRECTORY = "board"
EVENTS = "events.out.tfevents.0.longboat"
_LOCK = ".writer"
_NOT_METRICS = ("t", "step", "total")

Seat = tuple[str, str, int]
"""Stage, role, rank."""


@dataclass
class _Series:
    """The event file of one rank while it grows."""

    path: Path
    pending: bytearray = field(default_factory=bytearray)
    step: int = -1
    """Of the newest point."""
    new_life: bool = False
    """Its rank was started since."""
    begun: bool = False
    opened: bool = False


class TensorBoardExport:
    """Writes what the journal says; each poll appends what is new."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self.directory = run / DIRECTORY
        self._reader = journal.JournalReader(str(run))
        self._series: dict[tuple[Seat, int], _Series] = {}
        self._rounds: dict[str, int] = {}
        self._lock: int | None = None

    def poll(self) -> None:
        try:
            if self._lock is None and not self._take():
                return
            self._link_outputs()
            for event in self._reader.poll():
                self._feed(event)
            for series in self._series.values():
                _write(series)
        except OSError as error:
            raise LongboatError(
                f"the board's files cannot be written: {error.strerror}: {error.filename or self.directory}",
                f"they stand in {self.directory}, which must be writable",
            ) from None

    def close(self) -> None:
        self._reader.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _take(self) -> bool:
        """Makes this process the one that writes, unless another does."""
        self.directory.mkdir(exist_ok=True)
        fd = os.open(self.directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return False
        self._lock = fd
        return True

    def _link_outputs(self) -> None:
        """Event files of a stage's own are read where they are."""
        outputs = Path(run_layout.output(str(self._run), ""))
        for stage in sorted(outputs.iterdir()) if outputs.is_dir() else ():
            link = self.directory / stage.name / "output"
            if stage.is_dir() and not link.is_symlink():
                link.parent.mkdir(exist_ok=True)
                link.symlink_to(os.path.relpath(stage, link.parent), target_is_directory=True)

    def _feed(self, event: Event) -> None:
        """Readers are lenient: an event that lacks what it should have changes nothing."""
        try:
            if event["ev"] == "gen.started":
                self._rounds[event["stage"]] = int(event.get("round") or 0)
            elif event["ev"] == "rank.started":
                self._of(event).new_life = True
            elif event["ev"] == "rank.report":
                series = self._of(event)
                for point in event["points"]:
                    _add(series, point, float(point.get("t", event["t"])))
        except (KeyError, TypeError, ValueError, AttributeError):
            return

    def _of(self, event: Event) -> _Series:
        seat = (str(event["stage"]), str(event["role"]), int(event["rank"]))
        turn = self._rounds.get(seat[0], 0)
        if (seat, turn) not in self._series:
            place = self.directory / seat[0] / f"{seat[1]}-{seat[2]}" / (f"round-{turn}" if turn else "")
            self._series[seat, turn] = _Series(place / EVENTS)
        return self._series[seat, turn]


def _add(series: _Series, point: dict[str, object], when: float) -> None:
    metrics = [(name, _value(value)) for name, value in point.items() if name not in _NOT_METRICS]
    if not metrics:
        return
    step = point.get("step")
    number = step if isinstance(step, int) else series.step + 1
    if not series.begun:
        series.pending += tensorboard.opening(when) + tensorboard.restart(0, when)
        series.begun = True
    if series.new_life and number <= series.step:  # computed again: what was told of it before is superseded
        series.pending += tensorboard.restart(number, when)
    series.new_life = False
    series.step = number
    series.pending += tensorboard.scalars(metrics, number, when)


def _value(value: object) -> float:
    if not isinstance(value, (int, float, str)):
        raise TypeError(value)
    return float(value)


def _write(series: _Series) -> None:
    """Appends what is new. At the first time an earlier viewer may have left a beginning of it."""
    if not series.pending:
        return
    data = bytes(series.pending)
    series.pending.clear()
    if not series.opened:
        series.opened = True
        series.path.parent.mkdir(parents=True, exist_ok=True)
        there = series.path.read_bytes() if series.path.exists() else b""
        if there and not data.startswith(there):
            series.path.unlink()  # of another version of Longboat
            there = b""
        data = data[len(there) :]
    with open(series.path, "ab") as file:
        file.write(data)
