"""Catches the signals that stop a run, so that the driver's loop handles them."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Callable, List, Optional

from longboat.runtime import run_layout

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
STOP_COMMAND = (signal.SIGTERM, signal.SIGQUIT)
"""What `longboat stop` sends."""


def catch(handler: Callable[[int, Optional[FrameType]], None]) -> None:
    """Handle the signals that stop a run. A terminal's signal that was ignored at the start stays ignored: `nohup`,
    `trap '' HUP`, background jobs of a script."""
    for signum in ENDING:
        if signum in STOP_COMMAND or signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, handler)


class StopSignals:
    """Once created, these signals no longer end the process; they wait to be read."""

    def __init__(self, leave_on_term: bool) -> None:
        """leave_on_term: SIGTERM ends only this process, not the run."""
        self._wake, write = os.pipe()
        for fd in (self._wake, write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        catch(lambda *_: None)
        if leave_on_term:
            signal.signal(signal.SIGTERM, lambda *_: os._exit(0))

    def fileno(self) -> int:
        return self._wake

    def received(self) -> List[int]:
        return [number for number in os.read(self._wake, 4096) if number in ENDING]

    def close(self) -> None:
        signal.set_wakeup_fd(-1)


def stopped_by(signum: int, run_dir: str) -> str:
    """Who stopped the run: `longboat stop` writes its user down, Ctrl-C and kill do not."""
    try:
        with open(os.path.join(run_dir, run_layout.STOP), encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        names = {int(signal.SIGINT): "Ctrl-C", int(signal.SIGHUP): "closing the terminal"}
        return names.get(signum) or signal.Signals(signum).name
