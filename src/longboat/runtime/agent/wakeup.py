"""Wakes the agent's select: signals, and threads that have results for it."""

from __future__ import annotations

import os
import signal


class Wakeup:
    """A pipe that signals and threads write to. Once created, SIGTERM and SIGCHLD wake the loop instead of acting."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        for fd in (self._read, self._write):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def fileno(self) -> int:
        return self._read

    def ring(self) -> None:
        """Wake the loop; callable from any thread."""
        try:
            os.write(self._write, b"\0")
        except BlockingIOError:
            pass

    def signals(self) -> bytes:
        """Numbers of the signals received, 0 for a thread."""

        return os.read(self._read, 4096)

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
