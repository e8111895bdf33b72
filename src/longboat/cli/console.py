"""The outside world as one value, so that a test can hand in another.

Results go to `out`, everything else to `err`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TextIO


@dataclass(frozen=True)
class Console:
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @property
    def home(self) -> str:
        """Where runs and downloaded data are kept: $LONGBOAT_HOME, else ~/.longboat."""
        return os.path.abspath(os.path.expanduser(self.environ.get("LONGBOAT_HOME") or "~/.longboat"))

    @property
    def colour(self) -> bool:
        """May stderr be drawn on: a terminal, and nobody said NO_COLOR."""
        return self.interactive and not self.environ.get("NO_COLOR")

    @property
    def interactive(self) -> bool:
        return self.err.isatty() and self.environ.get("TERM") != "dumb"

    @property
    def columns(self) -> int:
        """The width of the terminal that results go to; 0 where that is none."""
        if not self.out.isatty():
            return 0
        import shutil

        return shutil.get_terminal_size().columns

    def say(self, text: str) -> None:
        """A line for the person at the terminal."""
        print(text, file=self.err, flush=True)

    def next(self, *commands: str) -> None:
        """What may be typed now: the last lines of a command."""
        if commands:
            self.say("\n".join(next_lines(commands)))

    def print(self, text: str) -> None:
        """A line of the result."""
        print(text, file=self.out)

    def print_json(self, value: object) -> None:
        """The result, for a machine."""
        import json

        self.print(json.dumps(value, indent=2, ensure_ascii=False))


def next_lines(commands: Iterable[str]) -> list[str]:
    """The same within a longer text."""
    commands = list(commands)
    return ["", "next:", *(f"  {command}" for command in commands)] if commands else []
