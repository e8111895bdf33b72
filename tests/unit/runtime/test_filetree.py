"""Parcels of files: they arrive byte for byte, whole or not at all, and never outside of their tree."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from longboat.runtime import filetree
from longboat.runtime.filetree import FileItem, PathNotFound


def tree(top: Path) -> dict[str, bytes]:
    return {str(path.relative_to(top)): path.read_bytes() for path in sorted(top.rglob("*")) if path.is_file()}


@pytest.fixture
def top(tmp_path: Path) -> Path:
    top = tmp_path / "top"
    (top / "a" / "empty").mkdir(parents=True)
    (top / "a" / "weights.bin").write_bytes(os.urandom(3 * filetree.PIECE + 17))
    (top / "a" / "run.sh").write_bytes(b"#!/bin/sh\n")
    (top / "a" / "run.sh").chmod(0o755)
    (top / "a" / "same").symlink_to("run.sh")
    (top / "a" / "out").symlink_to("/etc/hostname")
    (top / "a" / ("deep " * 40)).write_bytes(b"long name")
    return top


def test_a_directory_travels_as_a_stream_and_arrives_byte_for_byte(top: Path, tmp_path: Path) -> None:
    stream = io.BytesIO()
    filetree.pack(filetree.items(str(top), "a"), stream)
    pieces = iter([stream.getvalue()[at : at + 10_007] for at in range(0, len(stream.getvalue()), 10_007)])
    count = filetree.store(filetree.unpack(io.BufferedReader(filetree.PieceStream(pieces))), str(tmp_path / "copy"))
    wanted = tree(top / "a")
    del wanted["out"]
    assert tree(tmp_path / "copy") == wanted, "a link out of the tree is left out, one within it is its file"
    assert count == len(wanted)
    assert (tmp_path / "copy" / "empty").is_dir()
    assert os.access(tmp_path / "copy" / "run.sh", os.X_OK)
    assert int((tmp_path / "copy" / "run.sh").stat().st_mtime) == int((top / "a" / "run.sh").stat().st_mtime)


def test_a_file_that_does_not_arrive_whole_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(OSError, match="7 of 10 bytes are missing"):
        filetree.store([FileItem("", 10, 0o644, 0.0, io.BytesIO(b"new"))], str(tmp_path / "file"))

    def interrupted() -> Iterator[FileItem]:
        yield FileItem("", 3, 0o644, 0.0, Interrupted(b"new"))

    with pytest.raises(KeyboardInterrupt):
        filetree.store(interrupted(), str(tmp_path / "file"))
    assert tree(tmp_path) == {"file": b"old"}


class Interrupted(io.BytesIO):
    def read(self, size: int | None = -1) -> bytes:
        raise KeyboardInterrupt


@pytest.mark.parametrize("path", ["../up", "/etc/passwd", "a/../../up"])
def test_no_item_is_stored_outside(tmp_path: Path, path: str) -> None:
    with pytest.raises(PathNotFound) as error:
        filetree.store([FileItem(path, 1, 0o644, 0.0, io.BytesIO(b"x"))], str(tmp_path / "place"))
    assert error.value.outside


def test_no_link_in_the_target_is_followed_out_of_it(tmp_path: Path) -> None:
    outside, place = tmp_path / "outside", tmp_path / "place"
    outside.mkdir()
    (outside / "file").write_bytes(b"theirs")
    place.mkdir()
    (place / "folder").symlink_to(outside)
    (place / "file").symlink_to(outside / "file")
    for item in (FileItem("folder/file", 1, 0o644, 0.0, io.BytesIO(b"x")), FileItem("folder/deeper", 0, 0o755, 0.0)):
        with pytest.raises(PathNotFound) as error:
            filetree.store([item], str(place))
        assert error.value.outside
    filetree.store([FileItem("file", 4, 0o644, 0.0, io.BytesIO(b"ours"))], str(place))
    assert tree(outside) == {"file": b"theirs"}
    assert not (place / "file").is_symlink()


def test_a_name_may_begin_with_dots(tmp_path: Path) -> None:
    items = [FileItem("..data", 0, 0o755, 0.0), FileItem("..data/x", 1, 0o644, 0.0, io.BytesIO(b"x"))]
    filetree.store([*items, FileItem("...", 1, 0o644, 0.0, io.BytesIO(b"y"))], str(tmp_path))
    assert tree(tmp_path) == {"..data/x": b"x", "...": b"y"}


def test_what_is_not_there_is_told_with_the_nearest_name(top: Path) -> None:
    with pytest.raises(PathNotFound) as error:
        filetree.entries(str(top), "a/wieghts.bin", 1)
    assert error.value.near == "a/weights.bin"
    with pytest.raises(PathNotFound) as error:
        filetree.entries(str(top), "a/out", 1)
    assert error.value.outside


def test_a_list_gives_directories_the_size_of_all_in_them(top: Path) -> None:
    found = {entry.path: entry.size for entry in filetree.entries(str(top), "", 1)}
    assert found == {"a/": filetree.tree_size(top / "a")}
    assert [entry.path for entry in filetree.entries(str(top), "a/run.sh", 3)] == ["a/run.sh"]
    assert {"a/empty/", "a/weights.bin"} <= {entry.path for entry in filetree.entries(str(top), "", 2)}
