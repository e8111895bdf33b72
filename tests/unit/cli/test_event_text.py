"""Events as lines of text."""

from __future__ import annotations

import re
from typing import Any

import pytest

from longboat.cli import event_text
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.journal import plain

STOPPED = Cause(CauseKind.STOPPED, "stopped by Ctrl-C", stage="train")
FAILED = Cause(CauseKind.USER_ERROR, "exited with code 5", stage="train", role="worker", rank=1)


@pytest.mark.parametrize(
    ("event", "line"),
    [
        ({"ev": "stopping", "by": "Ctrl-C", "now": False}, "stopping (Ctrl-C)"),
        ({"ev": "stopping", "by": "Ctrl-C", "now": True}, "stopping now (Ctrl-C)"),
        (
            {"ev": "gen.ended", "gen": 1, "state": "stopped", "cause": STOPPED},
            "train generation 1 stopped: stopped by Ctrl-C",
        ),
        ({"ev": "stage.ended", "state": "stopped", "cause": STOPPED}, "train stopped: stopped by Ctrl-C"),
        (
            {"ev": "stage.ended", "state": "failed", "cause": FAILED},
            "train failed: train/worker-1: the program failed: exited with code 5",
        ),
    ],
)
def test_a_line_names_its_stage_once_and_who_stops_it(event: dict[str, Any], line: str) -> None:
    text = event_text.tell({"t": 1.0, "n": 1, "stage": "train", **{key: plain(value) for key, value in event.items()}})
    assert re.sub(r"^\d\d:\d\d:\d\d ", "", text or "") == line
