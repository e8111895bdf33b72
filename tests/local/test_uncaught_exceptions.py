"""An exception that nothing caught ends the gang at once, while the rank's exit handlers still run."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.local.place import Place

SPIRALS = Path(__file__).parents[2] / "recipes/spirals/train.py"

HANGS = """
import atexit, os, time
import longboat
atexit.register(time.sleep, 3600)  # as JAX's shutdown barrier
atexit.register(print, "exit handler", flush=True)
atexit.register(time.sleep, 0.5)
if os.environ["LONGBOAT_RANK"] == "1":
    raise ValueError("not today")
time.sleep(3600)
"""


def test_a_rank_that_hangs_in_its_exit_handlers_ends_the_gang_and_is_the_cause(longboat: Place) -> None:
    said = longboat.run("run: python hangs.py\nshape: allreduce\nranks: 3\nrestarts: 0\ngrace: 3\n", hangs=HANGS)
    assert said.code == 1
    assert (longboat.cause["kind"], longboat.cause["rank"]) == ("user_error", 1)
    assert longboat.cause["error"] == "ValueError: not today"
    assert longboat.cause["frame"].endswith("hangs.py:8 in <module>")
    assert "exit handler" in longboat.log(1)
    assert longboat.ends() == {"main/worker-0": "killed", "main/worker-1": "failed", "main/worker-2": "killed"}


def test_a_stop_without_grace_does_not_wait_for_exit_handlers(longboat: Place) -> None:
    command = longboat.start("run: python hangs.py\nshape: allreduce\nranks: 2\ngrace: 3600\n", hangs=HANGS)
    longboat.printed("exit handler", 1)
    assert longboat("stop", "--now").code == 0
    assert command.said().code == 130


def test_the_exception_comes_before_the_signal_that_kills_its_peer(longboat: Place) -> None:
    said = longboat.run(
        "run: python late.py\nshape: allreduce\nranks: 2\nrestarts: 0\ngrace: 1\n",
        late="""
        import atexit, os, time
        flag = os.path.join(os.environ["LONGBOAT_OUTPUT_DIR"], "raised")
        if os.environ["LONGBOAT_RANK"] == "1":
            atexit.register(time.sleep, 3600)
            atexit.register(lambda: open(flag, "w").close())
            raise ValueError("first")
        while not os.path.exists(flag):
            time.sleep(0.001)
        os.abort()
        """,
    )
    assert said.code == 1
    assert (longboat.cause["rank"], longboat.cause["error"]) == (1, "ValueError: first")


def test_a_program_that_goes_on_after_an_exception_is_left_alone(longboat: Place) -> None:
    said = longboat.run(
        "run: python goes_on.py\nshape: allreduce\nranks: 2\nrestarts: 0\n",
        goes_on="""
        import os, subprocess, sys, threading, time
        def fail():
            raise ValueError("handled")
        try:
            fail()
        except ValueError:
            sys.excepthook(*sys.exc_info())
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        if os.fork() == 0:
            fail()
        os.wait()
        child = [sys.executable, "-c", "raise ValueError('in a child')"]
        assert subprocess.run(child).returncode == 1
        time.sleep(1)
        """,
    )
    assert said.code == 0, said.err
    assert longboat.log().count("ValueError: handled") == 3
    assert len(longboat.events("gen.started")) == 1


def test_a_hook_of_the_program_itself_replaces_ours(longboat: Place) -> None:
    said = longboat.run(
        "run: python hook.py\nrestarts: 0\n",
        hook="""
        import sys
        sys.excepthook = lambda kind, *_: print("my hook:", kind.__name__, flush=True)
        raise ValueError("mine")
        """,
    )
    assert said.code == 1
    assert "my hook: ValueError" in longboat.log()
    assert "Traceback" not in longboat.log()


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
@pytest.mark.parametrize("rank", [0, 1])
def test_jax_does_not_wait_in_its_shutdown_barrier(longboat: Place, rank: int) -> None:
    """The barrier waits for five minutes, longer than this test does."""
    text = SPIRALS.read_text()
    fail = f"\n    if os.environ['RANK'] == '{rank}':\n        raise ValueError('one rank only')"
    broken = text.replace("\n    for step in ", fail + "\n    for step in ", 1)
    assert broken != text
    said = longboat.run("run: python spirals.py\nshape: allreduce\nranks: 2\nrestarts: 0\n", spirals=broken)
    assert said.code == 1
    assert (longboat.cause["rank"], longboat.cause["error"]) == (rank, "ValueError: one rank only")
