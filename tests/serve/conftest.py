from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve import making
from tests.serve.serving import Serving, serving


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one model of each sort."""
    directory = tmp_path_factory.mktemp("models")
    making.digits(directory / "mnist")
    making.table(directory / "table")
    making.words(directory / "words")
    making.logarithm(directory / "logarithm")
    return directory


@pytest.fixture(scope="session")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One server of all of them, for tests that only ask."""
    with serving(tmp_path_factory.mktemp("server"), models) as running:
        yield running
