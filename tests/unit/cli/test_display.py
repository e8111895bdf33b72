from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from longboat.cli.console import Console
from longboat.cli.display import Display, DisplayOptions
from longboat.runtime import journal
from longboat.runtime.causes import Cause, CauseKind

New = Callable[..., Any]


def finished(run: Any) -> None:
    run.start(0, 1)
    run.log(0, b"hello\n10%\r100%\nbye")
    run.rank("rank.report", 0, points=[{"t": 1.0, "step": 1, "total": 4, "loss": 0.5}])
    run.rank("rank.report", 0, points=[{"t": 2.0, "step": 4, "total": 4, "loss": 0.25}])
    run.succeed(0, 1)


def plain(console: Console) -> list[str]:
    text: str = console.err.getvalue()  # type: ignore[attr-defined]
    return text.splitlines()


def test_plain_lines_tell_what_began_then_what_was_printed_then_what_ended(new_run: New, console: Console) -> None:
    run = new_run()
    finished(run)
    state = Display(console, run.dir, DisplayOptions()).follow()
    lines = [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in plain(console)]
    assert state.state == "succeeded"
    assert lines[: lines.index("")] == [
        f"{run.id} started pid 77",
        "train started",
        "train/worker-0 started pid 100",
        "train/worker-1 started pid 101",
        "[worker-0] hello",
        "[worker-0] 100%",
        "[worker-0] bye",
        "train/worker-0 succeeded",
        "train/worker-1 succeeded",
        "train step 4/4 100% loss=0.25",
        "train succeeded",
        f"{run.id} succeeded (10s)",
        "  train: 4/4 100% loss=0.25",
    ]


def test_a_failed_run_ends_with_its_cause_and_the_way_to_learn_more(new_run: New, console: Console) -> None:
    run = new_run()
    run.start(0, 1)
    boom = Cause(CauseKind.OUT_OF_MEMORY, "the limit of 4 GB was reached", "train", "worker", 1, 1)
    run.rank("rank.ended", 1, state="killed", signal=9, cause=boom)
    run.event("stage.ended", stage="train", state="failed", cause=boom)
    run.event("run.ended", state="failed", code=1, cause=boom)
    assert Display(console, run.dir, DisplayOptions(quiet=True)).follow().code == 1
    lines = plain(console)
    assert any(
        line.endswith("train/worker-1 killed SIGKILL: out of memory: the limit of 4 GB was reached") for line in lines
    )
    assert f"  longboat why {run.id}" in lines


def test_json_is_the_journal_and_nothing_else_on_stdout(new_run: New, console: Console) -> None:
    run = new_run()
    finished(run)
    Display(console, run.dir, DisplayOptions(json=True)).follow()
    text: str = console.out.getvalue()  # type: ignore[attr-defined]
    assert text.encode() == (run.dir / journal.FILE).read_bytes()
    assert all(json.loads(line)["ev"] for line in text.splitlines())


def test_history_is_not_told_again_to_who_comes_later(new_run: New, console: Console) -> None:
    run = new_run()
    run.start(0, 1)
    run.log(0, b"old 1\nold 2\n")
    display = Display(console, run.dir, DisplayOptions(after=len(journal.read(str(run.dir))), tail=1))
    run.log(0, b"new\n")
    run.succeed(0, 1)
    display.follow()
    lines = plain(console)
    assert lines[:2] == ["[worker-0] old 2", "[worker-0] new"]
    assert not any("started" in line for line in lines)


def test_a_resumed_run_is_shown_beyond_its_earlier_end(new_run: New, console: Console) -> None:
    run = new_run()
    run.start(0)
    run.event("run.ended", state="failed", code=1)
    before = len(journal.read(str(run.dir)))
    display = Display(console, run.dir, DisplayOptions(after=before, resumed=before))
    run.event("run.started", run=run.id, pid=78, resumed=True)
    run.event("run.ended", state="succeeded", code=0)
    assert display.follow().code == 0


def test_a_stream_that_goes_away_does_not_end_the_following(new_run: New, tmp_path: Path) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    run = new_run()
    finished(run)
    assert Display(Console(Gone(), Gone(), {}), run.dir, DisplayOptions()).follow().state == "succeeded"


def on_a_terminal(run_dir: Path, **environ: str) -> str:
    """What a terminal receives when the run is displayed on it."""
    main_end, far_end = pty.openpty()
    code = (
        "from longboat.cli.display import Display, DisplayOptions; from longboat.cli.console import Console; "
        f"Display(Console(), {str(run_dir)!r}, DisplayOptions()).follow()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", **environ},
        stdin=far_end,
        stdout=far_end,
        stderr=far_end,
    )
    os.close(far_end)
    received: list[bytes] = []

    def drain() -> None:
        while True:
            try:
                data = os.read(main_end, 65536)
            except OSError:
                return
            if not data:
                return
            received.append(data)

    reader = threading.Thread(target=drain)
    reader.start()
    assert child.wait(timeout=60) == 0
    reader.join()
    os.close(main_end)
    return b"".join(received).decode()


def test_a_terminal_gets_a_bar_a_row_for_each_stage_and_the_lines_above(new_run: New) -> None:
    run = new_run()
    finished(run)
    run.log(0, b"\x1b[2J\x1b[31mred\x1b[0m \0 line\n")
    text = on_a_terminal(run.dir)
    assert "━━━" in text
    assert "worker 2/2 succeeded" in text
    assert "100%\r\n" in text
    assert "\x1b[31mred\x1b[0m  line" in text
    assert "\x1b[2J" not in text
    assert "\x1b[?25h" in text
    assert f"{run.id} succeeded" in text.splitlines()[-6]


def test_no_colour_where_it_is_not_wanted(new_run: New) -> None:
    run = new_run()
    finished(run)
    assert not re.search(r"\x1b\[[0-9;]*3\d", on_a_terminal(run.dir, NO_COLOR="1"))


def test_a_million_lines_reach_a_file_once_each(new_run: New, tmp_path: Path) -> None:
    run = new_run()
    run.start(0, 1)
    run.log(0, b"".join(b"%d\n" % i for i in range(1_000_000)))
    run.succeed(0, 1)
    with open(tmp_path / "shown", "w") as file:
        Display(Console(io.StringIO(), file, {}), run.dir, DisplayOptions()).follow()
    shown = [line for line in (tmp_path / "shown").read_bytes().split(b"\n") if line.startswith(b"[worker-0] ")]
    assert shown == [b"[worker-0] %d" % i for i in range(1_000_000)]
