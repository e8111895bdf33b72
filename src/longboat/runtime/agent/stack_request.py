"""Requests the stacks of hung ranks: Python processes write them on SIGUSR1.

`stack_dump` reads them; it is separate because readers of runs need no system calls.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Dict, Mapping, Tuple

from longboat.runtime.agent import stack_dump, syscalls

WAIT = 0.5
"""Seconds for processes to write their stacks."""
PATIENCE = 1.5
"""Seconds if one has written nothing: it may not have been scheduled. The gang waits a little longer."""


class StackRequest:
    """Sends the signal when created; the stacks can be read once `ready`.

    A process without a handler would die of the signal and does not get it. A stopped process is not
    continued: that would let it run on.
    """

    def __init__(self, files: Mapping[Tuple[str, int], str]) -> None:
        """files: the stacks file of each (role, rank)."""
        pids = syscalls.descendants(os.getpid())
        states = {pid: stack_dump.state_of(pid) for pid in pids}
        self.states = [f"process {pid} is {state}" for pid, state in states.items()]
        """States of all processes here, of any rank."""
        self._files = files
        self._starts = {seat: stack_dump.size(file) for seat, file in files.items()}
        signalled = [pid for pid in pids if stack_dump.catches(pid, signal.SIGUSR1)]
        self._expects_stacks = any(not stack_dump.is_stopped(pid) for pid in signalled)
        syscalls.signal_all(signalled, signal.SIGUSR1)
        self._signalled_at = time.monotonic()

    def ready(self) -> bool:
        waited = time.monotonic() - self._signalled_at
        if not self._expects_stacks or all(
            stack_dump.size(file) > self._starts[seat] for seat, file in self._files.items()
        ):
            return waited >= WAIT
        return waited >= PATIENCE

    def stacks(self) -> Dict[Tuple[str, int], str]:
        """What each rank has written since the signal."""
        return {seat: stack_dump.written(file, self._starts[seat]) for seat, file in self._files.items()}
