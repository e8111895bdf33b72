"""The debug log where its file cannot be opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from longboat.runtime import debug_log


def test_a_log_that_cannot_be_opened_goes_to_stderr_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(debug_log, "_logger", None)
    (tmp_path / "agents").write_text("not a directory")
    debug_log.begin("debug", "agent train/worker-0", str(tmp_path / "agents" / "train" / "worker-0.log"))
    debug_log.info("connected to %s", "the driver")
    assert capsys.readouterr().err.endswith("] connected to the driver\n")
