"""The drawn display: one row with a progress bar per stage, and scrolling output above.

The only module that imports rich. Ranks' lines are written in large pieces, without layout: a rank may print a million
of them.
"""

from __future__ import annotations

import time

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderResult
from rich.live import Live as Region
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from longboat.cli import log_format, run_summary
from longboat.cli.console import Console
from longboat.cli.display import Screen
from longboat.cli.event_text import Rates, tell
from longboat.runs import formatting
from longboat.runs.logs import LogPiece
from longboat.runs.run_state import RunState
from longboat.runtime.journal import Event

MARKS = {
    "running": ("▸", "cyan"),
    "serving": ("▸", "cyan"),
    "succeeded": ("✓", "green"),
    "reused": ("✓", "green"),
    "waiting": ("·", "dim"),
}
NOT_SHOWN = ("rank.started", "stage.started")
"""Events that the rows already show."""


class _Raw:
    """Text that is written unchanged."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        yield Segment(self._text)


class Live(Screen):
    def __init__(self, console: Console, one_stage: bool, logs: bool) -> None:
        self.logs = logs
        self._console = RichConsole(
            file=console.err, force_terminal=True, no_color=not console.colour, highlight=False, emoji=False
        )
        self._region = Region(
            console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._region.start()
        self._prefix = log_format.prefixer(one_stage, console.colour)
        self._rates = Rates()

    def event(self, event: Event) -> None:
        if event["ev"] in NOT_SHOWN or (event["ev"] == "rank.ended" and event.get("state") == "succeeded"):
            return
        text = tell(event)
        if text is not None:
            warned = event.get("level") == "warning" or event.get("state") in ("failed", "killed", "lost")
            self._console.print(Text(text, style="yellow" if warned else "dim"), soft_wrap=True)

    def piece(self, piece: LogPiece) -> None:
        text = log_format.tame(log_format.prefixed(piece, self._prefix(piece.source)))
        self._console.print(_Raw(text), end="", soft_wrap=True)

    def refresh(self) -> None:
        self._region.update(self._rows(self.state), refresh=True)

    def close(self) -> None:
        self._region.stop()

    def _rows(self, state: RunState) -> Table:
        table = Table.grid(padding=(0, 1))
        for stage in state.stages:
            mark, style = MARKS.get(stage.state, ("✗", "red"))
            rate, left = self._rates.speed(stage)
            clock = stage.ended or max(time.time(), stage.started)
            took = formatting.span(clock - stage.started) if stage.started else ""
            bar = ProgressBar(stage.total, stage.step or 0, width=24) if stage.total else Text("")
            figures = " ".join(filter(None, [run_summary.progress(stage), rate, f"eta {left}" if left else ""]))
            restarts = formatting.plural(stage.restarts, "restart") if stage.restarts else ""
            attempt = f"attempt {stage.attempt}" if stage.attempt > 1 else ""
            status = run_summary.verdict(stage.verdict) if stage.verdict else run_summary.gang(stage)
            rest = "  ".join(filter(None, [run_summary.metrics(stage.metrics), status, attempt, restarts]))
            table.add_row(
                Text(f"{mark} {stage.name}", style=style, no_wrap=True),
                bar,
                Text(figures, no_wrap=True),
                Text(took if stage.state != "waiting" else "waiting", style="dim", no_wrap=True),
                Text(rest, no_wrap=True, overflow="ellipsis"),
            )
        return table
