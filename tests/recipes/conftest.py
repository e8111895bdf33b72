"""What the tests of recipes share: a place for real runs, compiled programs, and ranks that wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local.conftest import longboat as longboat

RANK_HOOKS = {"PYTHONPATH": str(Path(__file__).parent / "rank_hooks")}


@pytest.fixture(scope="session")
def compiled() -> dict[str, str]:
    """The first rank compiles for all of them, if the cache of `tests/conftest.py` has not got it."""
    return {**RANK_HOOKS, "JAX_SHARE_BINARY_BETWEEN_HOSTS": "1"}


@pytest.fixture
def held() -> dict[str, str]:
    """The first generation goes no further than to its first checkpoint, however late its rank is killed. The second
    does not either, with HOLD_UNTIL_STOPPED, before it is asked to stop."""
    return {**RANK_HOOKS, "HOLD": "1"}
