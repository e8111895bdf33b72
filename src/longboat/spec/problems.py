"""Problems in a job file, each with position, quoted line, caret and fix.

Readers of a job file do not stop at the first problem: they add each one to a `Problems`, and the loader raises
all of them as one `JobError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import dataclass

SHOWN = 40
"""Show at most this many problems, and count the rest."""

LINE_BREAK = re.compile("\r\n|[\n\r\u0085\u2028\u2029]")
"""Line breaks of YAML."""

_WIDEST = 110
"""Maximum width of a quoted line; longer ones are cut around the caret."""


class Span(NamedTuple):
    """Position in a file: line and column from 1, length in characters on that line."""

    line: int
    column: int
    length: int = 1


@dataclass(frozen=True)
class Problem:
    """One problem. With line 0 it is not in a file: `file` is then the wrong option."""

    file: str
    line: int
    column: int
    length: int
    message: str
    hint: str = ""


class JobError(LongboatError):
    """All problems of a job file. `message` is for `error: {message}`; `str()` is the full text."""

    def __init__(self, problems: Iterable[Problem], texts: Mapping[str, str] | None = None, file: str = "") -> None:
        unique = dict.fromkeys(problems)
        self.problems: tuple[Problem, ...] = tuple(
            sorted(unique, key=lambda p: (p.file != file, p.file, p.line, p.column))
        )
        lines = {name: LINE_BREAK.split(text) for name, text in (texts or {}).items()}
        blocks = [_block(problem, lines.get(problem.file, [])) for problem in self.problems[:SHOWN]]
        count = len(self.problems)
        more = f" ({count - SHOWN} not shown)" if count > SHOWN else ""
        if any(problem.line for problem in self.problems):
            blocks.append(f"{count} {'problem' if count == 1 else 'problems'} in {file or self.problems[0].file}{more}")
        self._text = "\n\n".join(blocks)
        super().__init__(self._text.removeprefix("error: "))

    def __str__(self) -> str:
        return self._text


class Problems:
    """Collects the problems of one job file."""

    def __init__(self, file: str, text: str = "") -> None:
        self.file = file
        self.texts: dict[str, str] = {file: text}
        self.items: list[Problem] = []

    def add(self, span: Span, message: str, hint: str = "", file: str = "") -> None:
        self.items.append(Problem(file or self.file, span.line, span.column, span.length, message, hint))

    def add_option(self, option: str, message: str, hint: str = "") -> None:
        """Add a problem of the command line or the environment, not of a file."""
        self.items.append(Problem(option, 0, 0, 0, message, hint))

    def error(self, also: Iterable[Problem] = ()) -> JobError:
        return JobError([*self.items, *also], self.texts, self.file)


def nearest(word: str, known: Iterable[str], others: Mapping[str, str] | None = None) -> str:
    """The known word most similar to `word`, or "". `others` maps synonyms to known words."""
    import difflib

    targets = {name.lower(): name for name in known} | {name.lower(): ours for name, ours in (others or {}).items()}
    near = difflib.get_close_matches(word.lower(), targets, n=1, cutoff=0.6)
    return targets[near[0]] if near else ""


def did_you_mean(word: str, known: Iterable[str], others: Mapping[str, str] | None = None, what: str = "") -> str:
    """The hint for an unknown word: the most similar known word, or all of them if there are few."""
    known = list(known)
    near = nearest(word, known, others)
    if near:
        return f"did you mean `{near}`?"
    if known and len(known) <= 24:
        return f"{what or 'known here'}: {', '.join(known)}"
    return ""


def _block(problem: Problem, lines: list[str]) -> str:
    if not problem.line:
        text = [f"error: {problem.file}: {problem.message}"]
    else:
        text = [f"error: {problem.file}:{problem.line}:{problem.column}: {problem.message}"]
        if problem.line <= len(lines):
            text += _quoted(lines[problem.line - 1], problem)
    if problem.hint:
        text.append(f"  hint: {problem.hint}")
    return "\n".join(text)


def _quoted(line: str, problem: Problem) -> list[str]:
    start = problem.column - 1
    if len(line) > _WIDEST:
        cut = max(0, min(start - 20, len(line) - _WIDEST))
        line, start = line[cut : cut + _WIDEST], start - cut
    length = max(1, min(problem.length, len(line) - start))
    line = "".join(c if c.isprintable() or c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in line)
    number = str(problem.line)
    before = "".join(c if c == "\t" else " " * _columns(c) for c in line[:start])
    under = "^" * max(1, sum(_columns(c) for c in line[start : start + length]))
    return [f"  {number} | {line}".rstrip(), f"  {' ' * len(number)} | {before}{under}"]


def _columns(character: str) -> int:
    if character.isascii():
        return 1
    import unicodedata

    return 2 if unicodedata.east_asian_width(character) in "WF" else 0 if unicodedata.combining(character) else 1
