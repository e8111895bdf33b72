from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands import Windlass


@pytest.fixture
def windlass(tmp_path: Path) -> Windlass:
    return Windlass(tmp_path / "home")
