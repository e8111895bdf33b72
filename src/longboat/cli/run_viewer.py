"""Showing a run while it runs: from a process of its own next to a local driver, or in this process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from longboat.cli.console import Console, next_lines
from longboat.engines.interface import CanServe, RunHandle
from longboat.runtime.errors import FAILED, INTERRUPTED, OK

if TYPE_CHECKING:
    from longboat.cli.display import Display
    from longboat.runs.run_state import RunState


class RunViewer:
    def __init__(self, run: RunHandle, console: Console, json: bool, quiet: bool, commands: list[str]) -> None:
        self._run = run
        self._console = console
        self._json, self._quiet = json, quiet
        self._commands = commands
        self.logs = not quiet and not json
        self._beside: Callable[[], None] = lambda: None
        self._pid = 0
        self._logged = None
        if run.after:
            from longboat.runs.logs import sources

            self._logged = sources(run.directory)

    def open(self, beside: Callable[[], None]) -> None:
        self._beside = beside
        self._console.out.flush()
        self._console.err.flush()
        import signal

        from longboat.runtime.agent import syscalls
        from longboat.runtime.driver.stop_signals import ENDING

        # Until the viewer no longer listens to the driver's signals: a Ctrl-C that both hear must not count twice.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        self._pid = syscalls.fork(lambda: self._show_beside(mask))
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def wait(self) -> None:
        """A run that failed before it began is shown too."""
        if not self._pid:
            self.open(self._beside)
        os.waitpid(self._pid, 0)

    def show(self, begin: Callable[[], None]) -> int:
        try:
            display = self._display()
            begin()
            state = display.follow()
        except KeyboardInterrupt:
            self._console.say(f"{self._run.id} goes on {self._run.where}")
            self._console.next(*self._commands)
            return INTERRUPTED
        return ended(self._run, state, self._console)

    def _show_beside(self, mask: Iterable[int]) -> int:
        import signal

        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP):
            if signal.getsignal(signum) is not signal.SIG_IGN:  # after nohup, SIGHUP stays ignored
                signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        close_inherited()  # the driver's end of every pipe must be the driver's alone
        display = self._display()
        self._beside()
        display.follow()
        self._console.out.flush()
        return OK

    def _display(self) -> Display:
        from longboat.cli.display import Display, DisplayOptions

        options = DisplayOptions(
            json=self._json,
            quiet=self._quiet,
            after=self._run.after,
            resumed=self._run.after,
            until_serving=self._run.outlives_cli,
            rest=self._run.pause,
            logged=self._logged,
        )
        return Display(self._console, self._run.directory, options)


def ended(run: RunHandle, state: RunState, console: Console) -> int:
    """The exit code of a run that was watched; says how to reach one that only serves."""
    if state.state == "serving":
        console.say(serving_text(run, state))
        return OK
    return FAILED if state.code is None else state.code


def serving_text(run: RunHandle, state: RunState) -> str:
    """The last lines about a run that serves: where from here, one answer, and how to stop it."""
    from longboat.cli import run_summary

    lines = [f"{run.id} is serving"]
    for stage in state.stages:
        if stage.state != "serving" or not stage.serving:
            continue
        facts, remark = run.served_at(stage) if isinstance(run, CanServe) else (stage.serving, "")
        lines += [f"  {stage.name}: {line}" for line in run_summary.serving(facts)]
        lines += [f"  {stage.name}: {remark}"] if remark else []
    commands = [f"longboat url {run.id}", f"longboat logs -f {run.id}", f"longboat stop {run.id}"]
    return "\n".join([*lines, *next_lines(commands)])


def close_inherited() -> None:
    """Closes all files but the three streams. A container may allow a billion, so only open ones are tried."""
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        return
    for number in numbers:
        if number > 2:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(number)
