"""The command line as a function: called in this process, with a world of its own."""

from __future__ import annotations

import contextlib
import io
import os
from dataclasses import dataclass
from pathlib import Path

from longboat.cli.console import Console
from longboat.cli.main import main
from longboat.runtime.errors import LongboatError


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Longboat:
    """`longboat("init", "spirals")`: as `longboat init spirals` in a shell, its home below a test's own directory."""

    home: Path

    def __call__(self, *argv: str | os.PathLike[str], env: dict[str, str] | None = None) -> Said:
        out, err = io.StringIO(), io.StringIO()
        world = Console(out=out, err=err, environ={**os.environ, "LONGBOAT_HOME": str(self.home), **(env or {})})
        try:
            with contextlib.redirect_stderr(err):
                code = main([os.fspath(word) for word in argv], world)
        except LongboatError as error:
            world.say(f"error: {error.message}" + (f"\n\nhint: {error.hint}" if error.hint else ""))
            code = error.code
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        return Said(code, out.getvalue(), err.getvalue())
