"""Errors as messages: of the command line, and of the operating system."""

from __future__ import annotations

import errno
import os
import sys

import pytest

from longboat.cli import main
from longboat.runtime.errors import FAILED, WRONG_USE


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [
        (errno.EACCES, WRONG_USE, "error: no access to /runs/a/events.jsonl: Permission denied\n\nhint: "),
        (errno.EPERM, WRONG_USE, "error: no access to /runs/a/events.jsonl: Operation not permitted\n\nhint: "),
        (errno.ENOSPC, FAILED, "error: cannot write /runs/a/events.jsonl: No space left on device\n"),
        (errno.EROFS, FAILED, "error: cannot write /runs/a/events.jsonl: Read-only file system\n"),
    ],
)
def test_a_file_without_access_or_space_is_named(
    number: int, code: int, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number), "/runs/a/events.jsonl")

    monkeypatch.setattr(main, "main", fail)
    monkeypatch.setattr(sys, "argv", ["longboat", "status"])
    assert main.program() == code
    assert capsys.readouterr().err.startswith(message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["set", "job.yaml"], "the following arguments are required: NAME, VALUE"),
        (["exec", "run", "--rank", "one"], "argument --rank: invalid int value: 'one'"),
        (["status", "--nosuch"], "unrecognized arguments: --nosuch"),
    ],
)
def test_a_mistake_in_the_command_line_has_a_message_and_a_hint(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["longboat", *words])
    assert main.program() == WRONG_USE
    hint = f"hint: `longboat {words[0]} --help` shows its options"
    assert capsys.readouterr().err == f"error: {message}\n\n{hint}\n"
