"""Atomic file replacement: what readers see, and what is left behind."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from longboat.runtime import atomic_file


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_when_it_is_complete(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / ("ü" * 127)
    path.write_text("old")
    with atomic_file.replacing(path, durable) as unfinished:
        Path(unfinished).write_text("new")
        assert path.read_text() == "old"
        assert atomic_file.is_unfinished(Path(unfinished).name)
    assert path.read_text() == "new"
    assert not atomic_file.is_unfinished("model.part"), "that is a user's"
    atomic_file.write(path, "é", durable)
    assert path.read_bytes() == b"\xc3\xa9"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path, place = tmp_path / "file", tmp_path / "directory"
    path.write_text("old")
    place.mkdir()
    with contextlib.suppress(KeyboardInterrupt), atomic_file.replacing(path) as unfinished:
        Path(unfinished).write_text("half")
        raise KeyboardInterrupt
    with pytest.raises(IsADirectoryError):
        atomic_file.write(place, "text")
    assert path.read_text() == "old"
    assert sorted(tmp_path.iterdir()) == [place, path]


def test_the_guard_is_held_during_the_rename_alone_and_may_forbid_it(tmp_path: Path) -> None:
    path, seen = tmp_path / "file", []

    @contextlib.contextmanager
    def guard(allowed: bool):  # type: ignore[no-untyped-def]
        seen.append(path.exists())
        if not allowed:
            raise PermissionError
        yield
        seen.append(path.exists())

    with pytest.raises(PermissionError), atomic_file.replacing(path, guard=guard(False)) as unfinished:
        Path(unfinished).write_text("text")
    with atomic_file.replacing(path, guard=guard(True)) as unfinished:
        Path(unfinished).write_text("text")
        assert seen == [False]
    assert seen == [False, False, True]
