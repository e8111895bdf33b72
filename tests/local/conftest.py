"""Tests of real runs: here `longboat` is a process, and a test that leaves anything behind fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.place import Place


@pytest.fixture
def longboat(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    left = place.close()
    assert not left, "\n".join(["the test left behind:", *left])
