from __future__ import annotations

import hashlib
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.commands import Longboat
from tests.packages import build_wheel

# A shell's background jobs ignore Ctrl-C, and under nohup SIGHUP, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The tests start about a thousand Python processes. Without bytecode each of them compiles its imports again, which
# takes most of its time: so it is written, even where the environment turns that off.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What XLA compiles for this kind of processor is kept for later runs: compiling takes longer than training.
CPU_FEATURES = re.search(r"^(flags|Features)\s*:.*$", Path("/proc/cpuinfo").read_text(), re.M)
CACHES = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(
    CACHES / "longboat/xla" / hashlib.sha256(CPU_FEATURES[0].encode() if CPU_FEATURES else b"").hexdigest()[:12]
)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"


@pytest.fixture
def longboat(tmp_path: Path) -> Longboat:
    return Longboat(tmp_path / "home")


WHOLE_FILES = ("recipes", "browser")
"""Directories whose files share a training or a browser: one worker runs such a file."""

LONGEST_FIRST = ("recipes", "browser", "docs", "chaos", "faults", "local", "serve", "sim", "unit")


def directory_of(nodeid: str) -> str:
    return nodeid.split("/")[1]


class ByFileOrTest(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands a worker one test at a time, or a whole file of those that share something expensive.

    Like xdist's `--dist loadgroup`, which does nothing under pytest 9: there a test's id can no longer be changed.
    """

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0] if directory_of(nodeid) in WHOLE_FILES else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFileOrTest | None:
    if config.getoption("dist") != "load":
        return None  # somebody chose another one
    config.option.loadscopereorder = False  # the order is the one below
    return ByFileOrTest(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first, so that no worker begins one when all others have ended."""
    order = {name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: order.get(directory_of(item.nodeid), len(order)))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))
