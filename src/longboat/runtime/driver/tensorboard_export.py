"""Exports a run for TensorBoard: reported metrics as event files, next to the event files that stages wrote.

Everything is below `board/` in the run: `board/STAGE/ROLE-RANK/` holds the reports of one rank (in `round-N` if the
stage has rounds), `board/STAGE/output` links to what the stage wrote. The files are a pure function of the journal:
the same events give the same bytes. So a second viewer can continue where the first one stopped, and one that was
killed in the middle of a record does no harm. Only one viewer writes at a time.

TensorBoard itself is started elsewhere.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from longboat.runtime import journal, run_layout, tensorboard
from longboat.runtime.errors import LongboatError
from longboat.runtime.journal import Event
from longboat.runtime.light_dataclasses import dataclass, field
from longboat.runtime.seat import Seat

DIRECTORY = "board"
EVENTS = "events.out.tfevents.0.longboat"
_LOCK = ".writer"
_NOT_METRICS = ("t", "step", "total")

"""Stage, role, rank."""


@dataclass
class _Series:
    """The event file of one rank."""

    path: Path
    pending: bytearray = field(default_factory=bytearray)
    step: int = -1
    """Step of the newest point."""
    restarted: bool = False
    """Its rank was restarted since that point."""
    begun: bool = False
    opened: bool = False


class TensorBoardExport:
    """Writes the journal's reports as event files; each poll appends what is new."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self.directory = run / DIRECTORY
        self._reader = journal.JournalReader(str(run))
        self._series: dict[tuple[Seat, int], _Series] = {}
        self._rounds: dict[str, int] = {}
        self._lock: int | None = None

    def poll(self) -> None:
        try:
            if self._lock is None and not self._lock_writer():
                return
            self._link_outputs()
            for event in self._reader.poll():
                self._feed(event)
            for series in self._series.values():
                _write(series)
        except OSError as error:
            raise LongboatError(
                f"cannot write TensorBoard files: {error.strerror}: {error.filename or self.directory}",
                f"make {self.directory} writable",
            ) from None

    def close(self) -> None:
        self._reader.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _lock_writer(self) -> bool:
        """Become the writer; False if another process is."""
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
        """Link the outputs of stages: their event files are read where they are."""
        outputs = Path(run_layout.output(str(self._run), ""))
        for stage in sorted(outputs.iterdir()) if outputs.is_dir() else ():
            link = self.directory / stage.name / "output"
            if stage.is_dir() and not link.is_symlink():
                link.parent.mkdir(exist_ok=True)
                link.symlink_to(os.path.relpath(stage, link.parent), target_is_directory=True)

    def _feed(self, event: Event) -> None:
        """Handle an event. Readers are lenient: an incomplete event changes nothing."""
        try:
            if event["ev"] == "gen.started":
                self._rounds[event["stage"]] = int(event.get("round") or 0)
            elif event["ev"] == "rank.started":
                self._of(event).restarted = True
            elif event["ev"] == "rank.report":
                series = self._of(event)
                for point in event["points"]:
                    _add(series, point, float(point.get("t", event["t"])))
        except (KeyError, TypeError, ValueError, AttributeError):
            return

    def _of(self, event: Event) -> _Series:
        seat = Seat(str(event["stage"]), str(event["role"]), int(event["rank"]))
        round_ = self._rounds.get(seat.stage, 0)
        if (seat, round_) not in self._series:
            directory = self.directory / seat.stage / seat.rank_name / (f"round-{round_}" if round_ else "")
            self._series[seat, round_] = _Series(directory / EVENTS)
        return self._series[seat, round_]


def _add(series: _Series, point: dict[str, object], when: float) -> None:
    metrics = [(name, _value(value)) for name, value in point.items() if name not in _NOT_METRICS]
    if not metrics:
        return
    step = point.get("step")
    number = step if isinstance(step, int) else series.step + 1
    if not series.begun:
        series.pending += tensorboard.opening(when) + tensorboard.restart(0, when)
        series.begun = True
    if series.restarted and number <= series.step:  # computed again: replaces earlier points
        series.pending += tensorboard.restart(number, when)
    series.restarted = False
    series.step = number
    series.pending += tensorboard.scalars(metrics, number, when)


def _value(value: object) -> float:
    if not isinstance(value, (int, float, str)):
        raise TypeError(value)
    return float(value)


def _write(series: _Series) -> None:
    """Append what is new. The first time, an earlier viewer may have written the beginning already."""
    if not series.pending:
        return
    data = bytes(series.pending)
    series.pending.clear()
    if not series.opened:
        series.opened = True
        series.path.parent.mkdir(parents=True, exist_ok=True)
        existing = series.path.read_bytes() if series.path.exists() else b""
        if existing and not data.startswith(existing):
            series.path.unlink()  # written by another version of Longboat
            existing = b""
        data = data[len(existing) :]
    with open(series.path, "ab") as file:
        file.write(data)
