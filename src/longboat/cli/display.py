"""The live display of a run, from its journal and its logs alone.

It takes three forms: a drawn region on a terminal (live.py), plain lines that can be grepped
elsewhere, and the journal's own events as JSON. It reads what the run writes and nothing waits
for it, so it can never hold up the run; when its terminal goes away it goes on silently,
because the exit code still counts.
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

EVERY = 5.0
"""Seconds between two progress lines of one stage."""


class Screen:
    """A form of the display; this one shows nothing. Its methods may fail with OSError or
    ValueError when the stream is gone."""

    logs = False
    """Are the ranks' lines wanted."""
    state = RunState("")
    """The run with all that this look found; set before anything is shown of it."""

    def event(self, event: Event) -> None:
        """Something happened."""

    def piece(self, piece: LogPiece) -> None:
        """A rank printed lines."""

    def refresh(self) -> None:
        """All of one look has been shown."""

    def close(self) -> None:
        """Nothing more comes for now."""


class Display:
    """Shows a run until it is over. After a KeyboardInterrupt `follow` may be called again
    and goes on where it was.

    quiet: leave out what the ranks print. after: that many events are history and are not
    shown, nor what was logged until now but for the last `tail` lines of each rank. resumed: an
    end among so many events is not the end. living: asks after the driver, by its lock if not given.
    until_serving: a run that does nothing but serve has been shown, too. rest: waits so many seconds, or
    until there may be news. logged: what each log held before the run was taken up again, where that is known.
    """

    def __init__(
        self,
        console: Console,
        run_dir: str | os.PathLike[str],
        json: bool = False,
        quiet: bool = False,
        after: int = 0,
        tail: int = 0,
        resumed: int = 0,
        living: Callable[[], bool] | None = None,
        until_serving: bool = False,
        rest: Callable[[float], object] = time.sleep,
        logged: Mapping[LogSource, int] | None = None,
    ) -> None:
        self._world = console
        self._run = Path(run_dir)
        self._json = json
        self._quiet = quiet
        self._after = after
        self._told = 0
        self._until_serving = until_serving
        self._rest = rest
        self._gone = False
        self._watch = RunWatch(self._run, resumed, living)
        stages = [stage.name for stage in self._watch.plan.stages] if self._watch.plan else []
        self._one_stage = len(stages) == 1
        self._logs = LogFollower(self._run, order=stages)
        if logged is not None:
            self._logs.begin(lambda source, _path: logged.get(source, 0))
        elif after:
            self._logs.begin(beginning(tail))

    def follow(self) -> RunState:
        screen = self._screen()
        try:
            while not self._look(screen):
                if self._gone:
                    screen = Screen()
                if not self._logs.behind:
                    self._rest(PAUSE)
        finally:
            _unless_gone(screen.close)
        state = self._watch.state
        if state.over:
            _unless_gone(lambda: self._world.say(run_summary.ending(state, self._run, time.time())))
        return state

    def _look(self, screen: Screen) -> bool:
        """One look: what began, then what was printed, then what ended. True when the run is over."""
        events = self._watch.poll()
        over = self._watch.over
        screen.state = self._watch.state
        news = events[max(self._after - self._told, 0) :]
        self._told += len(events)
        ends = next((place for place, event in enumerate(news) if event["ev"].endswith(".ended")), len(news))
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
        return over or self._until_serving and self._serves

    @property
    def _serves(self) -> bool:
        """The run does nothing but serve, and all has been shown; of one that goes on, what it did before is over."""
        behind = self._told > self._after or not self._after
        return behind and self._watch.state.state == "serving" and not self._logs.behind

    def _screen(self) -> Screen:
        if self._gone:
            return Screen()
        if self._json:
            return _Json(self._world)
        if self._world.interactive:
            from longboat.cli.live_display import Live

            return Live(self._world, self._one_stage, not self._quiet)
        return _Plain(self._world, self._one_stage, not self._quiet)


def _unless_gone(do: Callable[[], None]) -> None:
    with contextlib.suppress(OSError, ValueError):
        do()


class _Json(Screen):
    """Each event as it stands in the journal."""

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
        self._world = console
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
            self._world.say(text)

    def piece(self, piece: LogPiece) -> None:
        log_format.write(self._world.err, log_format.prefixed(piece, self._prefix(piece.source)))

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
            self._world.say(f"{formatting.clock(t)} {progress_line(stage, self._rates)}")
