"""Programs that a command runs and waits for. They end with the command, even when it is killed.

Only for the main thread: the kernel's signal comes when the thread ends that started the program.
"""

import subprocess
from collections.abc import Mapping
from pathlib import Path


def run(
    *argv: str | Path, check: bool = True, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    command = ["setpriv", "--pdeathsig", "KILL", *map(str, argv)]
    return subprocess.run(command, check=check, cwd=cwd, env=env, capture_output=True, text=True)
