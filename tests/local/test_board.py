"""`longboat board`: the real TensorBoard on real runs, asked over HTTP as its page asks."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
import urllib.parse
import urllib.request
from typing import Any

import pytest

from longboat.install_hint import install_command
from tests.commands import Longboat
from tests.local.place import Command, Place, until

REPORTING = """
    import os, time, longboat
    from longboat import tensorboard

    own = tensorboard.Writer(os.path.join(os.environ["LONGBOAT_OUTPUT_DIR"], "mine"))
    own.histogram("weights", [1.0, 2.0], 1)
    for step in range(1, 4):
        longboat.report(step=step, total=6, loss=1 / step)
    while not os.path.exists("go"):
        time.sleep(0.02)
    for step in range(4, 7):
        longboat.report(step=step, total=6, loss=1 / step)
"""


def opened(longboat: Place, *argv: str) -> tuple[Command, str]:
    """A board that has told its address."""
    board = longboat.begin("board", *argv, "--port", "0")
    until(lambda: "\n" in board.out or board.process.poll() is not None, "the address")
    assert re.fullmatch(r"http://\S+/\n", board.out), board.err
    return board, board.out.strip()


def ask(url: str, what: str, **query: str) -> Any:
    with urllib.request.urlopen(f"{url}data/{what}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
        return json.load(answer)


def curve(url: str, run: str = "main/worker-0", tag: str = "loss") -> list[tuple[int, float]]:
    if tag not in ask(url, "plugin/scalars/tags").get(run, {}):
        return []
    return [(step, value) for _, step, value in ask(url, "plugin/scalars/scalars", run=run, tag=tag)]


def test_a_run_is_shown_as_it_goes_and_ctrl_c_ends_the_viewing_alone(longboat: Place) -> None:
    run = longboat.start("run: python work.py\n", work=REPORTING)
    board, url = opened(longboat)
    assert url.startswith("http://127.0.0.1:")
    half: list[Any] = [pytest.approx((step, 1 / step)) for step in (1, 2, 3)]
    until(lambda: curve(url) == half, "the first half of the curve")
    until(lambda: "main/output/mine" in ask(url, "plugin/histograms/tags"), "the stage's own file")
    assert list(ask(url, "plugin/histograms/tags")["main/output/mine"]) == ["weights"]
    (longboat.code / "go").touch()
    whole: list[Any] = [pytest.approx((step, 1 / step)) for step in range(1, 7)]
    until(lambda: curve(url) == whole, "the whole curve")
    board.signal(signal.SIGINT)
    assert board.said().code == 130
    assert "Traceback" not in board.err
    assert run.said().code == 0, run.err

    again, url = opened(longboat, longboat.id)
    until(lambda: curve(url) == whole, "the curve of a run that has ended")
    again.signal(signal.SIGINT)
    assert again.said().code == 130


def test_ctrl_c_while_the_run_goes_on_leaves_it_running(longboat: Place) -> None:
    run = longboat.start("run: python work.py\n", work=REPORTING)
    board, _ = opened(longboat)
    board.signal(signal.SIGINT)
    assert board.said().code == 130
    assert longboat.status()["state"] == "running"
    (longboat.code / "go").touch()
    assert run.said().code == 0, run.err


def test_a_port_that_is_taken_and_an_address_of_elsewhere_are_refused_with_a_way_out(longboat: Place) -> None:
    assert longboat.run("run: 'true'\n").code == 0
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        said = longboat("board", "--port", port)
    assert said.code == 2
    assert f"error: TensorBoard cannot listen on 127.0.0.1:{port}: the port is already in use" in said.err
    assert "--port 0" in said.err
    said = longboat("board", "--host", "192.0.2.1", "--port", "0")
    assert said.code == 2
    assert "error: TensorBoard cannot listen on 192.0.2.1" in said.err
    assert longboat("board", "--port", "70000").code == 2


def test_others_are_let_in_only_when_asked_for_and_with_a_warning(longboat: Place) -> None:
    assert longboat.run("run: 'true'\n").code == 0
    for host, warned in (("127.0.0.1", False), ("0.0.0.0", True)):
        board, _ = opened(longboat, "--host", host)
        assert ("warning: TensorBoard has no login" in board.err) is warned
        board.signal(signal.SIGINT)
        board.said()


def test_without_tensorboard_one_message_says_how_to_get_it(longboat: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert longboat.run("run: 'true'\n").code == 0
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    said = Longboat(longboat.home)("board")
    assert said.code == 2
    assert "TensorBoard is not installed" in said.err
    assert f"hint: install it: {install_command('board')}\n" in said.err
