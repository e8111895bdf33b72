from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.commands import Longboat

# A shell's background jobs ignore Ctrl-C and so would all that the tests start; some are to be ended by it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def longboat(tmp_path: Path) -> Longboat:
    return Longboat(tmp_path / "home")
