"""What wakes the agent's loop from its select: signals, and threads that have done something for it."""

from __future__ import annotations

import os
import signal


class Wakeup:
    """From when it is made, SIGTERM does not end this process: it rings, as the end of a child does."""

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
        """From any thread."""
        try:
            os.write(self._write, b"\0")
        except BlockingIOError:
            pass

    def signals(self) -> bytes:
        """The numbers of those that rang it, 0 for a thread."""
        return os.read(self._read, 4096)

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
