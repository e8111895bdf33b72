"""What the tests of commands that look at runs share: a run that failed, what was printed, a command as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from longboat.cli.console import Console
from longboat.runtime.causes import Cause, CauseKind

New = Callable[..., Any]

BOOM = Cause(CauseKind.USER_ERROR, "exit code 1", "train", "worker", 1, 1, exit_code=1, error="ValueError: boom")


def out(console: Console) -> str:
    text: str = console.out.getvalue()  # type: ignore[attr-defined]
    return text


def err(console: Console) -> str:
    text: str = console.err.getvalue()  # type: ignore[attr-defined]
    return text


def failed(run: Any) -> None:
    run.start(0, 1)
    run.rank("rank.ended", 1, state="failed", code=1, cause=BOOM)
    run.rank("rank.ended", 0, state="killed", signal=9, because="worker-1")
    run.event("stage.ended", stage="train", state="failed", cause=BOOM)
    run.event("run.ended", state="failed", code=1, cause=BOOM)


def longboat(home: Path, *args: str) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "LONGBOAT_HOME": str(home)}
    return subprocess.Popen(
        [sys.executable, "-m", "longboat", *args], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
