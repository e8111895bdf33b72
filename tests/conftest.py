from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.commands import Longboat

# A shell's background jobs ignore Ctrl-C and so would all that the tests start; some are to be ended by it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The tests start about a thousand Python processes. Without bytecode each of them compiles its imports again, which
# takes most of its time: so it is written, even where the environment turns that off.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


@pytest.fixture
def longboat(tmp_path: Path) -> Longboat:
    return Longboat(tmp_path / "home")
