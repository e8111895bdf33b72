"""What the tests of recipes share: a place for real runs, and compiled programs that outlast one of them."""

from __future__ import annotations

import pytest

from tests.local.conftest import windlass as windlass


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Runs after the first need not compile again what it compiled."""
    place = tmp_path_factory.mktemp("compiled")
    return {"JAX_COMPILATION_CACHE_DIR": str(place), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1"}
