"""Programs that a command runs and waits for. They end with the command, even when it is killed.

They also hold every lock that the command holds, so whoever gets the lock next knows that they are gone.

Only for the main thread: the kernel's signal comes when the thread ends that started the program.
"""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

# No signal comes for a command that ended before it was asked for: the program has another parent then.
_UNLESS_ORPHANED = 'test "$PPID" = "$0" && exec "$@"'


def run(
    *argv: str | Path, check: bool = True, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    command = ["setpriv", "--pdeathsig", "KILL", "sh", "-c", _UNLESS_ORPHANED, str(os.getpid()), *map(str, argv)]
    # Of the open files only those are passed on that were made to be: the locks.
    return subprocess.run(command, check=check, cwd=cwd, env=env, capture_output=True, text=True, close_fds=False)
