from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


def make(*words: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(["make", *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_has_a_hash_for_every_package_and_names_no_place(lock: Path) -> None:
    text = lock.read_text()
    packages = re.split(r"\n(?=\S)", text)
    assert [
        p.split()[0]
        for p in packages
        if not re.match(r"[\w.-]+==\S+ .*\\\n(    --hash=sha256:[0-9a-f]{64}( \\)?\n?)+$", p)
    ] == []
    assert "://" not in text


def test_make_alone_lists_every_target_with_what_it_does() -> None:
    done = make()
    assert done.returncode == 0
    targets = re.findall(r"^\.PHONY: (\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == targets
    assert {"demo", "test", "e2e", "bench", "lint", "docs", "clean"} <= set(targets)


def test_every_room_is_in_the_architecture_and_every_lock_in_its_readme() -> None:
    sources = [path.relative_to(ROOT / "src/longboat") for path in (ROOT / "src/longboat").rglob("*.py")]
    rooms = {path.parts[0].removesuffix(".py") for path in sources if not path.parts[0].startswith("__")}
    told = (ROOT / "docs/architecture.md").read_text()
    assert [room for room in sorted(rooms) if f"`{room}" not in told] == []
    read_me = (ROOT / "requirements/README.md").read_text()
    assert [lock.name for lock in LOCKS if f"`{lock.name}`" not in read_me] == []
