"""Files on their way in and out of a tree: listed, read one after another, stored whole or not at all.

`ls`, `cat` and `cp` work on runs of this machine and, through a pod, on those of a cluster: the rules
are the same because this room is on both sides. A path never leads out of its tree, not by dots and
not by a link. Between two machines a parcel travels as a tar stream. Nothing here knows of runs.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from dataclasses import dataclass
from typing import BinaryIO, Callable, Iterable, Iterator, List, Optional, Sequence, Union

PIECE = 1 << 20
PART = ".longboat-part"
"""Ending of a file that is not whole yet."""


class PathNotFound(Exception):
    """What was asked for does not exist, or leads out of the tree."""

    def __init__(self, path: str, near: str = "", outside: bool = False) -> None:
        super().__init__(path)
        self.path, self.near, self.outside = path, near, outside


@dataclass(frozen=True)
class FileEntry:
    path: str
    """Within the tree; a directory's ends with a slash."""
    size: int
    depth: int


@dataclass(frozen=True)
class FileItem:
    """One file or directory of a parcel."""

    path: str
    """Below what was asked for; empty: that itself."""
    size: int
    mode: int
    time: float
    source: Optional[BinaryIO] = None
    """The content; None for a directory."""


def inside(top: str, path: str) -> str:
    """The place that a path means, which is there."""
    found = joined(top, path)
    if not os.path.exists(found):
        raise PathNotFound(path, nearest(path, (entry.path for entry in _walk(top, top, 9, 0))))
    return found


def joined(top: str, path: str) -> str:
    """The place that a path means, there or not."""
    found = os.path.normpath(os.path.join(top, path.lstrip("/")))
    real, root = os.path.realpath(found), os.path.realpath(top)
    if os.path.commonpath([real, root]) != root:
        raise PathNotFound(path, outside=True)
    return found


def nearest(path: str, names: Iterable[str]) -> str:
    import difflib

    near = difflib.get_close_matches(path.strip("/"), [name.rstrip("/") for name in names], n=1)
    return near[0] if near else ""


def entries(top: str, path: str, depth: int) -> List[FileEntry]:
    """What a path means: a file, or all in a directory down to a depth. Hidden names at the top are left out."""
    start = inside(top, path)
    if not os.path.isdir(start):
        return [FileEntry(os.path.relpath(start, top), os.path.getsize(start), 0)]
    return list(_walk(top, start, max(depth, 1), 0))


def _walk(top: str, start: str, depth: int, level: int) -> Iterator[FileEntry]:
    """Names in order; a directory's size is that of all in it."""
    with os.scandir(start) as listed:
        found = sorted((e for e in listed if start != top or not e.name.startswith(".")), key=lambda e: e.name)
    for entry in found:
        name = os.path.relpath(entry.path, top)
        if entry.is_dir(follow_symlinks=False):
            yield FileEntry(name + "/", tree_size(entry.path), level)
            if level + 1 < depth:
                with contextlib.suppress(PermissionError):
                    yield from _walk(top, entry.path, depth, level + 1)
        else:
            yield FileEntry(name, entry.stat(follow_symlinks=False).st_size, level)


def tree_size(path: Union[str, os.PathLike[str]]) -> int:
    """Bytes in all files below a directory; links are not followed."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def items(top: str, path: str) -> Iterator[FileItem]:
    """A file, or a directory with all in it. A link counts as the file that it names, if that is in the tree."""
    start = inside(top, path)
    if not os.path.isdir(start):
        yield from _opened(start, "")
        return
    for folder, folders, names in os.walk(start):
        folders.sort()
        below = os.path.relpath(folder, start)
        found = os.stat(folder)
        yield FileItem("" if below == "." else below, 0, stat.S_IMODE(found.st_mode), found.st_mtime)
        for name in sorted(names):
            place = os.path.join(folder, name)
            with contextlib.suppress(PathNotFound):
                if os.path.isfile(joined(top, os.path.relpath(place, top))):
                    yield from _opened(place, os.path.relpath(place, start))


def _opened(place: str, path: str) -> Iterator[FileItem]:
    with open(place, "rb") as file:
        found = os.fstat(file.fileno())
        yield FileItem(path, found.st_size, stat.S_IMODE(found.st_mode), found.st_mtime, file)


def pack(parcel: Iterable[FileItem], out: BinaryIO) -> None:
    """Writes a tar stream. A file that grows meanwhile is sent as long as it was when it was opened."""
    import tarfile

    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for item in parcel:
            told = tarfile.TarInfo(os.path.join("x", item.path).rstrip("/"))
            told.mode, told.mtime, told.size = item.mode, int(item.time), item.size
            if item.source is None:
                told.type = tarfile.DIRTYPE
            tar.addfile(told, item.source)
    out.flush()


def unpack(stream: BinaryIO) -> Iterator[FileItem]:
    import tarfile

    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for told in tar:
            path = told.name.partition("/")[2]
            if told.isdir() or told.isreg():
                source = tar.extractfile(told) if told.isreg() else None
                yield FileItem(path, told.size, told.mode, float(told.mtime), source)  # type: ignore[arg-type]


def target(top: str, path: str, name: str) -> str:
    """Where a parcel goes that is called `name`: into a directory, or to a name that is given to it."""
    place = joined(top, path)
    return os.path.join(place, name) if path.endswith("/") or os.path.isdir(place) else place


def store(parcel: Iterable[FileItem], place: str, tell: Callable[[int], None] = lambda _count: None) -> int:
    """Puts a parcel at a place; how many files. A file appears under its name when it is whole; `tell` hears of
    bytes as they are written."""
    count = 0
    for item in parcel:
        path = os.path.normpath(item.path) if item.path else ""
        if os.path.isabs(path) or path.split(os.sep)[0] == os.pardir:
            raise PathNotFound(item.path, outside=True)
        if item.source is None:
            os.makedirs(joined(place, path), exist_ok=True)
        else:
            folder, name = os.path.split(path)  # a link of that name is replaced, not followed
            found = os.path.join(joined(place, folder), name) if path else place
            os.makedirs(os.path.dirname(found) or ".", exist_ok=True)
            _store_file(item, found, tell)
            count += 1
    return count


def _store_file(item: FileItem, place: str, tell: Callable[[int], None]) -> None:
    if os.path.isdir(place):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), place)
    folder, name = os.path.split(place)
    aside = os.path.join(folder, f".{name[:200]}.{os.getpid()}{PART}")
    assert item.source is not None
    try:
        with open(aside, "wb") as file:
            rest = item.size
            while rest:
                data = item.source.read(min(PIECE, rest))
                if not data:
                    raise OSError(f"{item.path or name}: {rest} of {item.size} bytes are missing")
                file.write(data)
                rest -= len(data)
                tell(len(data))
        os.chmod(aside, item.mode & 0o777 | 0o200)
        os.utime(aside, (item.time, item.time))
        os.replace(aside, place)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(aside)


class PieceStream(io.RawIOBase):
    """A stream that is read from pieces as they come."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = piece
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def total(found: Sequence[FileEntry]) -> int:
    """Bytes that a parcel will have, from a list of what is in it."""
    return sum(entry.size for entry in found if entry.depth == 0)
