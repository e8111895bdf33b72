"""What the tests of recipes share: a place for real runs, compiled programs, and ranks that wait."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from tests.local.conftest import longboat as longboat

RANK_HOOKS = {"PYTHONPATH": str(Path(__file__).parent / "rank_hooks")}


@pytest.fixture(scope="session")
def compiled() -> dict[str, str]:
    """What XLA has compiled is compiled once on a machine, in the first rank alone."""
    features = next(
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(("flags", "Features"))
    )
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return {
        **RANK_HOOKS,
        "JAX_COMPILATION_CACHE_DIR": str(caches / "longboat/xla" / hashlib.sha256(features.encode()).hexdigest()[:12]),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        "JAX_SHARE_BINARY_BETWEEN_HOSTS": "1",
    }


@pytest.fixture
def held() -> dict[str, str]:
    """The first generation goes no further than to its first checkpoint, however late its rank is killed. The second
    does not either, with HOLD_UNTIL_STOPPED, before it is asked to stop."""
    return {**RANK_HOOKS, "HOLD": "1"}
