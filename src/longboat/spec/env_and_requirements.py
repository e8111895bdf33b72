"""Reads the env files and requirements files that a job file names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from longboat.spec.problems import LINE_BREAK, Problems, Span, did_you_mean
from longboat.spec.stage_keys import VARIABLE
from longboat.spec.yaml_nodes import ScalarNode

_LARGEST = 1 << 20
_NESTED = 8
"""Maximum depth of requirements files that name others."""

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


class EnvFile(NamedTuple):
    path: str
    given: str
    """The path as the user wrote it, for messages."""
    span: Span | None = None
    """Position in the job file; None if it comes from the command line."""


def read_env_files(files: list[EnvFile], params: Mapping[str, ScalarNode], problems: Problems) -> dict[str, str]:
    """Variables of all env files; later files override earlier ones.

    `${NAME}` in a value is a variable defined above, in the same file or an earlier one, or else a param. In single
    quotes nothing is replaced.
    """
    variables: dict[str, str] = {}
    for file in files:
        text = _text(file.path, file.given, file.span, problems)
        if text is not None:
            problems.texts[file.given] = text
            for number, line in enumerate(LINE_BREAK.split(text), 1):
                _read_line(line, number, file.given, variables, params, problems)
    return variables


def _read_line(
    line: str, number: int, file: str, variables: dict[str, str], params: Mapping[str, ScalarNode], problems: Problems
) -> None:
    stripped = line.strip()
    if not stripped or stripped.startswith("#"):
        return
    span = Span(number, len(line) - len(line.lstrip()) + 1, len(stripped))
    name, equals, value = re.sub(r"^export\s+", "", stripped).partition("=")
    name = name.rstrip()
    if not equals or not re.fullmatch(VARIABLE.pattern, name):
        problems.add(span, "not a KEY=VALUE line", "write KEY=VALUE, a # comment, or an empty line", file)
        return
    if name.startswith("LONGBOAT_"):
        problems.add(span, f"`{name}`: variables that start with LONGBOAT_ are reserved", "", file)
        return
    plain = _unquoted(value.strip())
    if plain is None:
        problems.add(span, f"the value of `{name}` has an unclosed quote, or text after the closing quote", "", file)
        return
    text, literal = plain
    variables[name] = text if literal else _filled(text, span, file, variables, params, problems)


def _unquoted(value: str) -> tuple[str, bool] | None:
    """The value and whether it is literal; None if its quotes do not close."""
    if value[:1] == "'":
        match = re.fullmatch(r"'([^']*)'\s*(?:#.*)?", value)
        return (match[1], True) if match else None
    if value[:1] == '"':
        match = re.fullmatch(r'"((?:[^"\\]|\\.)*)"\s*(?:#.*)?', value)
        if not match:
            return None
        return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), match[1]), False
    return re.sub(r"\s+#.*$", "", value), False


def _filled(
    text: str, span: Span, file: str, variables: Mapping[str, str], params: Mapping[str, ScalarNode], problems: Problems
) -> str:
    def put(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return "${"
        if name in variables:
            return variables[name]
        if name in params:
            return "" if params[name].value is None else params[name].text
        hint = did_you_mean(name, [*variables, *params]) if len(name) > 1 else ""
        problems.add(span, f"`${{{name}}}` is not a variable defined above or a param", hint, file)
        return match[0]

    return re.sub(r"\$\$\{|\$\{([^}]*)\}", put, text)


def read_requirements(path: str, given: str, span: Span, problems: Problems, depth: int = 0) -> tuple[str, ...]:
    """The requirements in the file, including those of files named with -r."""
    text = _text(path, given, span, problems)
    if text is None:
        return ()
    requirements: list[str] = []
    for line in _logical_lines(text):
        nested = re.fullmatch(r"(?:-r|--requirement)(?:\s+|=)(.+)", line)
        if not nested:
            requirements.append(line)
        elif depth >= _NESTED:
            problems.add(span, f"the requirements files nest more than {_NESTED} levels deep")
        else:
            inner = os.path.join(os.path.dirname(path), nested[1].strip())
            requirements += read_requirements(inner, nested[1].strip(), span, problems, depth + 1)
    return tuple(requirements)


def _logical_lines(text: str) -> Iterator[str]:
    joined = re.sub(r"\\[ \t]*(?:\r\n|\n|\r)", " ", text)
    for line in LINE_BREAK.split(joined):
        line = re.sub(r"(^|\s+)#.*$", "", line).strip()
        if line:
            yield " ".join(line.split())


def _text(path: str, given: str, span: Span | None, problems: Problems) -> str | None:
    """The text of the file. Adds a problem and returns None if it cannot be read."""
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST + 1)
        if len(data) <= _LARGEST and b"\0" not in data:
            return data.decode("utf-8-sig")
        message, hint = "is not a text file of at most 1 MiB", ""
    except FileNotFoundError:
        message, hint = "does not exist", f"looked for {path}"
    except UnicodeDecodeError as error:
        message, hint = f"is not valid UTF-8 (byte {error.start + 1})", "save it as UTF-8"
    except (OSError, ValueError) as error:
        message, hint = f"cannot be read: {getattr(error, 'strerror', None) or error}", ""
    if span is None:
        problems.add_option(f"--env-file {given}", message, hint)
    else:
        problems.add(span, f"`{given}`: {message}", hint)
    return None
