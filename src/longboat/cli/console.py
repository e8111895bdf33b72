"""The console of a command: its streams and environment as one value, which tests replace.

Results go to `out`, everything else to `err`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import TextIO

from longboat.runtime import debug_log
from longboat.runtime.light_dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Console:
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @property
    def home(self) -> str:
        """Directory of runs and downloaded data: $LONGBOAT_HOME, else ~/.longboat."""
        return os.path.abspath(os.path.expanduser(self.environ.get("LONGBOAT_HOME") or "~/.longboat"))

    def verbose(self) -> Console:
        """The same console with the debug log turned on."""
        return replace(self, environ={**self.environ, debug_log.VARIABLE: "debug"})

    @property
    def colour(self) -> bool:
        """Whether stderr may be coloured: it is a terminal, and NO_COLOR is not set."""
        return self.interactive and not self.environ.get("NO_COLOR")

    @property
    def interactive(self) -> bool:
        return self.err.isatty() and self.environ.get("TERM") != "dumb"

    @property
    def columns(self) -> int:
        """Width of the terminal on stdout; 0 if it is not a terminal."""
        if not self.out.isatty():
            return 0
        import shutil

        return shutil.get_terminal_size().columns

    def say(self, text: str) -> None:
        """Prints a message to stderr."""
        print(text, file=self.err, flush=True)

    def next(self, *commands: str) -> None:
        """Prints the commands that may be typed next, as the last lines of a command."""
        if commands:
            self.say("\n".join(next_lines(commands)))

    def print(self, text: str) -> None:
        """Prints a line of the result to stdout."""
        print(text, file=self.out)

    def print_json(self, value: object) -> None:
        """Prints the result as JSON."""
        import json

        self.print(json.dumps(value, indent=2, ensure_ascii=False))


def next_lines(commands: Iterable[str]) -> list[str]:
    """The lines that suggest the next commands; empty without commands."""
    commands = list(commands)
    return ["", "next:", *(f"  {command}" for command in commands)] if commands else []
