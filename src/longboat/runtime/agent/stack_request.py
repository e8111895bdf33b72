"""What ranks that hang are doing, asked of them: Python processes write their stacks on SIGUSR1.

Apart from `stacks`, which reads what they wrote: signals need the system's library, and a reader of runs does not.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Dict, Mapping, Tuple

from longboat.runtime.agent import stack_dump, syscalls

WAIT = 0.5
"""Seconds that processes get to write their stacks."""
PATIENCE = 1.5
"""Seconds that they get where one has written nothing: it may not have had its turn. The gang waits a little longer."""


class StackRequest:
    """Asks when it is made; what was written can be read once it is ready.

    A process without a handler would die of the signal, and is not asked. One that is stopped stays so: to wake it
    for its stacks would be to set it going again.
    """

    def __init__(self, files: Mapping[Tuple[str, int], str]) -> None:
        """files: where the stacks of each rank, by role and number, are written."""
        pids = syscalls.descendants(os.getpid())
        states = {pid: stack_dump.state_of(pid) for pid in pids}
        self.states = [f"process {pid} is {state}" for pid, state in states.items()]
        """Of all processes here, whichever rank they are of."""
        self._files = files
        self._starts = {who: stack_dump.size(file) for who, file in files.items()}
        asked = [pid for pid in pids if stack_dump.catches(pid, signal.SIGUSR1)]
        self._hopeful = any(not states[pid].startswith("stopped") for pid in asked)
        syscalls.signal_all(asked, signal.SIGUSR1)
        self._asked = time.monotonic()

    def ready(self) -> bool:
        waited = time.monotonic() - self._asked
        if not self._hopeful or all(stack_dump.size(file) > self._starts[who] for who, file in self._files.items()):
            return waited >= WAIT
        return waited >= PATIENCE

    def stacks(self) -> Dict[Tuple[str, int], str]:
        """What each rank has written since."""
        return {who: stack_dump.written(file, self._starts[who]) for who, file in self._files.items()}
