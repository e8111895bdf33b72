"""The engine contract on a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from longboat.engines.interface import EngineContext
from tests.contract.contract import EngineContract, EngineUnderTest
from tests.e2e.conftest import PYTHON
from tests.e2e.place import Place


class TestKubernetes(EngineContract):
    @pytest.fixture
    def on(self, place: Place) -> Iterator[EngineUnderTest]:
        code = place.directory / "code"
        code.mkdir()
        context = EngineContext(str(place.home), os.environ, namespace=place.namespace)
        engine = EngineUnderTest("kubernetes", context, code, head=f"image: {PYTHON}\n")
        yield engine
        engine.close()
