"""Tracebacks as programs leave them in their logs."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from longboat.runtime.agent import tracebacks
from longboat.runtime.agent.tracebacks import Traceback


def printed(script: str) -> list[str]:
    """What a real Python prints when it runs this."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False, timeout=60
    )
    return [line for line in done.stderr.splitlines() if line.strip()]


def last(lines: list[str]) -> Traceback:
    found = tracebacks.last(lines)
    assert found is not None, lines
    return found


def test_a_log_without_a_traceback_has_none() -> None:
    assert tracebacks.last([]) is None
    assert tracebacks.last(["step 1", "ValueError: only a word"]) is None
    assert tracebacks.last(["Traceback (most recent call last):", "and then nothing"]) is None


@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "worker 3 | "])
def test_every_line_may_begin_with_the_same_words(prefix: str) -> None:
    lines = [prefix + line for line in printed("def step():\n  raise ValueError('x')\nstep()")]
    assert last(lines) == Traceback("ValueError: x", "<string>:2 in step")


def test_what_an_error_was_raised_from_is_told_the_nearest_first() -> None:
    found = last(
        printed("""
        try:
            try:
                {}["a"]
            except KeyError as first:
                raise OSError("second") from first
        except OSError as second:
            raise RuntimeError("third") from second
        """)
    )
    assert found.error == "RuntimeError: third"
    assert found.causes == (
        "OSError: second at <string>:6 in <module>",
        "KeyError: 'a' at <string>:4 in <module>",
    )


def test_an_error_raised_while_another_was_handled_was_not_raised_from_it() -> None:
    assert last(printed("try:\n  1 / 0\nexcept Exception:\n  raise KeyError('b')")).causes == ()


def test_the_errors_of_a_group_are_told_with_tracebacks_of_their_own_or_without() -> None:
    found = last(
        printed("""
        def fail(n):
            raise ValueError(f"shard {n}")
        found = []
        for n in (1, 2):
            try: fail(n)
            except ValueError as error: found.append(error)
        raise ExceptionGroup("torn", [*found, OSError("plain")])
        """)
    )
    assert (found.error, found.frame) == ("ExceptionGroup: torn (3 sub-exceptions)", "<string>:8 in <module>")
    assert found.members == ("ValueError: shard 1", "ValueError: shard 2", "OSError: plain")


def test_the_thread_that_an_error_ended_is_named() -> None:
    found = last(
        printed("""
        import threading
        thread = threading.Thread(target=lambda: 1 / 0, name="feeder")
        thread.start()
        thread.join()
        """)
    )
    assert found.thread.startswith("feeder")
    assert found.error == "ZeroDivisionError: division by zero"


def test_the_frame_is_the_innermost_of_the_users_own() -> None:
    assert last(printed("def read():\n  import json\n  json.loads('')\nread()")).frame == "<string>:3 in read"


def test_lines_behind_the_error_are_counted() -> None:
    assert last([*printed("raise ValueError('x')"), "bye", "bye"]).behind == 2


def test_what_python_writes_as_a_fatal_signal_strikes_names_the_frame() -> None:
    lines = printed("""
        import ctypes, faulthandler
        faulthandler.enable()
        def poke():
            ctypes.string_at(0)
        poke()
        """)
    frame, error = tracebacks.fatal(lines)
    assert error == "Fatal Python error: Segmentation fault"
    assert frame == "<string>:5 in poke"
    assert tracebacks.fatal(["all is well"]) == ("", "")
