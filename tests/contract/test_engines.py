"""The engine contract on this machine: the built-in local engine, and one that is installed by entry point."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from longboat.engines.interface import EngineContext
from tests.contract.contract import EngineContract, EngineUnderTest, environment

PLUGINS = Path(__file__).parents[1] / "plugins"


def here(name: str, directory: Path) -> Iterator[EngineUnderTest]:
    code = directory / "code"
    code.mkdir()
    engine = EngineUnderTest(name, EngineContext(str(directory / "home"), environment()), code)
    yield engine
    engine.close()


class TestLocal(EngineContract):
    @pytest.fixture
    def on(self, tmp_path: Path) -> Iterator[EngineUnderTest]:
        yield from here("local", tmp_path)


class TestInstalledByEntryPoint(EngineContract):
    @pytest.fixture
    def on(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineUnderTest]:
        monkeypatch.setattr(sys, "path", [str(PLUGINS), *sys.path])
        yield from here("far", tmp_path)
