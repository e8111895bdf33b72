"""Packages of a job are installed whole or not at all, whoever breaks off. `tests/local` installs real ones."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from longboat.engines.interface import silent
from longboat.engines.local import requirements
from longboat.runtime.plan import Plan

PYTHON = f"""#!/bin/sh
[ "$2" = "import pip" ] && exit 0
[ "$1" = "-m" ] || exec {sys.executable} "$@"
while [ "$1" != "--target" ]; do shift; done
mkdir -p "$2"
touch "$2/first"
if [ -e "$0.interrupts" ]; then kill -USR1 $PPID; sleep 600; fi
touch "$2/second"
"""
"""A Python whose pip puts two files there, and in between may interrupt whoever called it."""


@pytest.fixture
def python(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "bin"
    place.mkdir()
    (place / "python").write_text(PYTHON)
    (place / "python").chmod(0o755)

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield place
    signal.signal(signal.SIGUSR1, before)


def install(tmp_path: Path, python: Path) -> str:
    return requirements.directory(
        Plan("job", requirements=("no-such-distribution",)), str(python), str(tmp_path), silent
    )


def test_an_interrupt_while_packages_are_installed_leaves_no_half_of_them(tmp_path: Path, python: Path) -> None:
    (python / "python.interrupts").touch()
    with pytest.raises(KeyboardInterrupt):
        install(tmp_path, python)
    assert [each.name for each in (tmp_path / "packages").iterdir() if each.is_dir()] == []
    (python / "python.interrupts").unlink()
    assert sorted(os.listdir(install(tmp_path, python))) == ["first", "second"]


def test_what_a_killed_process_of_the_same_number_had_installed_is_not_taken_for_ours(
    tmp_path: Path, python: Path
) -> None:
    place = Path(install(tmp_path, python))
    place.rename(f"{place}.{os.getpid()}")
    (tmp_path / f"packages/{place.name}.{os.getpid()}/third").touch()
    assert install(tmp_path, python) == str(place)
    assert sorted(os.listdir(place)) == ["first", "second"]
