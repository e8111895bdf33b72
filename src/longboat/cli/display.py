"""The live display of a run, from its journal and its logs alone.

It has three forms: a drawn region on a terminal (`live_display`), plain lines elsewhere, and the journal's events as
JSON. It reads what the run writes, and nothing waits for it, so it cannot delay the run. If its terminal goes away, it
continues silently, because the exit code still counts.
"""

from __future__ import annotations

import contextlib
import json as jsonlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from longboat.cli import log_format, run_summary
from longboat.cli.console import Console
from longboat.cli.event_text import Rates, progress_line, stage_of, tell
from longboat.runs import formatting
from longboat.runs.logs import LogFollower, LogPiece, LogSource, beginning
from longboat.runs.run_state import RunState, StageState
from longboat.runs.watch import PAUSE, RunWatch
from longboat.runtime.journal import Event
from longboat.runtime.light_dataclasses import dataclass

EVERY = 5.0
"""Seconds between two progress lines of one stage."""


class Screen:
    """A form of the display; this one shows nothing. Methods may raise OSError or ValueError if the stream is gone."""

    logs = False
    """Whether to show the ranks' lines."""
    state = RunState("")
    """The state of the run; set before its new events are shown."""

    def event(self, event: Event) -> None:
        """Something happened."""

    def piece(self, piece: LogPiece) -> None:
        """A rank printed lines."""

    def refresh(self) -> None:
        """All new events and lines have been shown."""

    def close(self) -> None:
        """Nothing more is shown for now."""


@dataclass(frozen=True)
class DisplayOptions:
    json: bool = False
    quiet: bool = False
    """Hide the ranks' output."""
    after: int = 0
    """Number of events that are history and not shown."""
    tail: int = 0
    """Lines of each rank's earlier log to show."""
    resumed: int = 0
    """An end among so many events is not the end."""
    until_serving: bool = False
    """Return when the run only serves."""
    rest: Callable[[float], object] = time.sleep
    """Waits so many seconds, or until there may be news."""
    logged: Mapping[LogSource, int] | None = None
    """Size of each log before the run was resumed, if known."""


class Display:
    """Shows a run until it is over. After a KeyboardInterrupt, `follow` can be called again and continues."""

    def __init__(self, console: Console, run_dir: str | os.PathLike[str], options: DisplayOptions) -> None:
        self._console = console
        self._run = Path(run_dir)
        self._options = options
        self._read = 0
        self._gone = False
        self._watch = RunWatch(self._run, options.resumed)
        stages = [stage.name for stage in self._watch.plan.stages] if self._watch.plan else []
        self._one_stage = len(stages) == 1
        self._logs = LogFollower(self._run, order=stages)
        logged = options.logged
        if logged is not None:
            self._logs.begin(lambda source, _path: logged.get(source, 0))
        elif options.after:
            self._logs.begin(beginning(options.tail))

    def follow(self) -> RunState:
        screen = self._screen()
        try:
            while not self._show_news(screen):
                if self._gone:
                    screen = Screen()
                if not self._logs.behind:
                    self._options.rest(PAUSE)
        finally:
            _unless_gone(screen.close)
        state = self._watch.state
        if state.over:
            _unless_gone(lambda: self._console.say(run_summary.ending(state, self._run, time.time())))
        return state

    def _show_news(self, screen: Screen) -> bool:
        """Shows news: what started, then what was printed, then what ended. True if the run is over."""
        events = self._watch.poll()
        over = self._watch.over
        screen.state = self._watch.state
        news = events[max(self._options.after - self._read, 0) :]
        self._read += len(events)
        ends = next((index for index, event in enumerate(news) if event["ev"].endswith(".ended")), len(news))
        try:
            for event in news[:ends]:
                screen.event(event)
            if screen.logs:
                for piece in self._logs.poll(last=over):
                    screen.piece(piece)
            for event in news[ends:]:
                screen.event(event)
            screen.refresh()
        except (OSError, ValueError):
            self._gone = True
            self._logs.behind = False
        return over or self._options.until_serving and self._serves

    @property
    def _serves(self) -> bool:
        """The run only serves, and everything was shown; events before a resume do not count."""
        behind = self._read > self._options.after or not self._options.after
        return behind and self._watch.state.state == "serving" and not self._logs.behind

    def _screen(self) -> Screen:
        if self._gone:
            return Screen()
        if self._options.json:
            return _Json(self._console)
        if self._console.interactive:
            from longboat.cli.live_display import Live

            return Live(self._console, self._one_stage, not self._options.quiet)
        return _Plain(self._console, self._one_stage, not self._options.quiet)


def _unless_gone(do: Callable[[], None]) -> None:
    with contextlib.suppress(OSError, ValueError):
        do()


class _Json(Screen):
    """Each event as it is in the journal."""

    def __init__(self, console: Console) -> None:
        self._out = console.out

    def event(self, event: Event) -> None:
        try:
            self._out.write(jsonlib.dumps(event, ensure_ascii=False, separators=(",", ":")) + "\n")
            self._out.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._out.fileno())
            raise


class _Plain(Screen):
    """Lines for a file, a pipe or a dumb terminal."""

    def __init__(self, console: Console, one_stage: bool, logs: bool) -> None:
        self._console = console
        self.logs = logs
        self._prefix = log_format.prefixer(one_stage, colour=False)
        self._rates = Rates()
        self._shown: dict[str, tuple[float, float]] = {}
        """Stage -> when its progress was last shown, and the time of the point that was shown."""

    def event(self, event: Event) -> None:
        if event["ev"] == "stage.ended" and (stage := stage_of(self.state, str(event.get("stage")))):
            self._progress(stage, event["t"], at_once=True)
        text = tell(event)
        if text is not None:
            self._console.say(text)

    def piece(self, piece: LogPiece) -> None:
        log_format.write(self._console.err, log_format.prefixed(piece, self._prefix(piece.source)))

    def refresh(self) -> None:
        for stage in self.state.stages:
            self._progress(stage, self.state.last, at_once=stage.state != "running")

    def _progress(self, stage: StageState, t: float, at_once: bool) -> None:
        if stage.leader is None:
            return
        self._rates.rate(stage)
        now, point = time.monotonic(), stage.leader.reported
        shown, shown_point = self._shown.get(stage.name, (-EVERY, 0.0))
        if point > shown_point and (at_once or now - shown >= EVERY):
            self._shown[stage.name] = (now, point)
            self._console.say(f"{formatting.clock(t)} {progress_line(stage, self._rates)}")
