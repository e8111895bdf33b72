"""Files of a directory tree: list, read and store them; a file is stored completely or not at all.

`ls`, `cat` and `cp` use this on local runs, and in a pod on runs of a cluster, so the rules are the same.
A path never leads out of its tree, neither by `..` nor by a link. Between machines, files travel as a tar
stream. Nothing here knows about runs.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from typing import BinaryIO, Callable, Iterable, Iterator, List, Optional, Sequence, Union

from longboat.runtime import atomic_file
from longboat.runtime.light_dataclasses import dataclass

PIECE = 1 << 20


class PathNotFound(Exception):
    """A path does not exist, or leads out of the tree."""

    def __init__(self, path: str, near: str = "", outside: bool = False) -> None:
        super().__init__(path)
        self.path, self.near, self.outside = path, near, outside


@dataclass(frozen=True)
class FileEntry:
    """A line of a listing."""

    path: str
    """In the tree; a directory's ends with a slash."""
    size: int
    depth: int


@dataclass(frozen=True)
class FileItem:
    """A file or directory on its way from one tree to another."""

    path: str
    """Relative to the requested path; empty: the requested path itself."""
    size: int
    mode: int
    time: float
    source: Optional[BinaryIO] = None
    """The content; None for a directory."""


def inside(top: str, path: str) -> str:
    """Path on disk of an existing file or directory of the tree."""
    target_path = joined(top, path)
    if not os.path.exists(target_path):
        raise PathNotFound(path, nearest(path, (entry.path for entry in _walk(top, top, 9, 0))))
    return target_path


def joined(top: str, path: str) -> str:
    """Path on disk of a file or directory of the tree, existing or not."""
    target_path = os.path.normpath(os.path.join(top, path.lstrip("/")))
    real, root = os.path.realpath(target_path), os.path.realpath(top)
    if os.path.commonpath([real, root]) != root:
        raise PathNotFound(path, outside=True)
    return target_path


def nearest(path: str, names: Iterable[str]) -> str:
    import difflib

    near = difflib.get_close_matches(path.strip("/"), [name.rstrip("/") for name in names], n=1)
    return near[0] if near else ""


def entries(top: str, path: str, depth: int) -> List[FileEntry]:
    """A file, or the contents of a directory down to a depth. Hidden names at the top are skipped."""
    start = inside(top, path)
    if not os.path.isdir(start):
        return [FileEntry(os.path.relpath(start, top), os.path.getsize(start), 0)]
    return list(_walk(top, start, max(depth, 1), 0))


def _walk(top: str, start: str, depth: int, level: int) -> Iterator[FileEntry]:
    """Entries sorted by name; a directory's size is that of everything in it."""
    with os.scandir(start) as listed:
        children = sorted((e for e in listed if start != top or not e.name.startswith(".")), key=lambda e: e.name)
    for entry in children:
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
    """A file, or a directory with everything in it. A link counts as the file it points to, if that is in the tree."""
    start = inside(top, path)
    if not os.path.isdir(start):
        yield from _opened(start, "")
        return
    for folder, folders, names in os.walk(start):
        folders.sort()
        below = os.path.relpath(folder, start)
        stats = os.stat(folder)
        yield FileItem("" if below == "." else below, 0, stat.S_IMODE(stats.st_mode), stats.st_mtime)
        for name in sorted(names):
            path_on_disk = os.path.join(folder, name)
            with contextlib.suppress(PathNotFound):
                if os.path.isfile(joined(top, os.path.relpath(path_on_disk, top))):
                    yield from _opened(path_on_disk, os.path.relpath(path_on_disk, start))


def _opened(path_on_disk: str, path: str) -> Iterator[FileItem]:
    with open(path_on_disk, "rb") as file:
        stats = os.fstat(file.fileno())
        yield FileItem(path, stats.st_size, stat.S_IMODE(stats.st_mode), stats.st_mtime, file)


def pack(tree: Iterable[FileItem], out: BinaryIO) -> None:
    """Write a tar stream. A file that grows meanwhile is sent with the size it had when opened."""
    import tarfile

    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for item in tree:
            info = tarfile.TarInfo(os.path.join("x", item.path).rstrip("/"))
            info.mode, info.mtime, info.size = item.mode, int(item.time), item.size
            if item.source is None:
                info.type = tarfile.DIRTYPE
            tar.addfile(info, item.source)
    out.flush()


def unpack(stream: BinaryIO) -> Iterator[FileItem]:
    """Read a tar stream."""
    import tarfile

    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for info in tar:
            path = info.name.partition("/")[2]
            if info.isdir() or info.isreg():
                source = tar.extractfile(info) if info.isreg() else None
                yield FileItem(path, info.size, info.mode, float(info.mtime), source)  # type: ignore[arg-type]


def target(top: str, path: str, name: str) -> str:
    """Path on disk for files called `name`: inside an existing directory, or exactly the given path."""
    chosen = joined(top, path)
    return os.path.join(chosen, name) if path.endswith("/") or os.path.isdir(chosen) else chosen


def store(tree: Iterable[FileItem], target_path: str, tell: Callable[[int], None] = lambda _count: None) -> int:
    """Store files at a path; returns their number. A file gets its name only when it is complete; `tell` is called
    with the bytes written."""
    count = 0
    for item in tree:
        path = os.path.normpath(item.path) if item.path else ""
        if os.path.isabs(path) or path.split(os.sep)[0] == os.pardir:
            raise PathNotFound(item.path, outside=True)
        if item.source is None:
            os.makedirs(joined(target_path, path), exist_ok=True)
        else:
            folder, name = os.path.split(path)  # a link of that name is replaced, not followed
            destination = os.path.join(joined(target_path, folder), name) if path else target_path
            os.makedirs(os.path.dirname(destination) or ".", exist_ok=True)
            _store_file(item, destination, tell)
            count += 1
    return count


def _store_file(item: FileItem, target_path: str, tell: Callable[[int], None]) -> None:
    if os.path.isdir(target_path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target_path)
    assert item.source is not None
    with atomic_file.replacing(target_path) as part:
        with open(part, "wb") as file:
            rest = item.size
            while rest:
                data = item.source.read(min(PIECE, rest))
                if not data:
                    name = item.path or os.path.basename(target_path)
                    raise OSError(f"{name}: {rest} of {item.size} bytes are missing")
                file.write(data)
                rest -= len(data)
                tell(len(data))
        os.chmod(part, item.mode & 0o777 | 0o200)
        os.utime(part, (item.time, item.time))


class PieceStream(io.RawIOBase):
    """A readable stream over an iterator of byte strings."""

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


def total(listing: Sequence[FileEntry]) -> int:
    """Bytes of all files in a listing."""
    return sum(entry.size for entry in listing if entry.depth == 0)
