"""What the tests of recipes share: a place for real runs, and compiled programs that outlast one of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local.conftest import longboat as longboat


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Runs after the first need not compile again what it compiled."""
    place = tmp_path_factory.mktemp("compiled")
    return {"JAX_COMPILATION_CACHE_DIR": str(place), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1"}


HOLD = """
import os
life = os.environ.get("LONGBOAT_GENERATION")
if life in ("1", "2"):
    import time, longboat
    save = longboat.checkpoint.save
    def held(*given, **named):
        save(*given, **{**named, "wait": True})
        while life == "1" or "HOLD_UNTIL_STOPPED" in os.environ and not longboat.stopping():
            time.sleep(0.01)
    longboat.checkpoint.save = held
"""


@pytest.fixture
def held(tmp_path: Path) -> dict[str, str]:
    """The first generation goes no further than to its first checkpoint, however late its rank is killed. The second
    does not either, with HOLD_UNTIL_STOPPED, before it is asked to stop."""
    (tmp_path / "hold").mkdir()
    (tmp_path / "hold/sitecustomize.py").write_text(HOLD)
    return {"PYTHONPATH": str(tmp_path / "hold")}
