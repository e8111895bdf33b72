"""File access in a pod: list, read and write on behalf of the CLI. The pod is the driver's or a helper.

A helper pod (`wait`) mounts storage that no running pod has mounted, and ends by itself when no request came
for a while. Every other command takes one JSON argument; `top` is a directory or the URL of a bucket. A path
that does not exist is reported on stderr as JSON, with the exit code MISSING.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from typing import Any, BinaryIO, Callable, Dict, Iterable, Iterator, List, Mapping

from longboat.runtime import filetree
from longboat.runtime.buckets import directory_sync
from longboat.runtime.buckets.bucket_mounts import SCHEMES
from longboat.runtime.filetree import FileEntry, FileItem, PathNotFound
from longboat.runtime.pod import idle_tracker

IDLE = 60.0
"""Seconds without a request after which a helper pod ends."""
MISSING = 4
REFUSED = 5


def wait(_arguments: List[str]) -> int:
    """Wait in a helper pod for requests, and end when none came for a while."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    idle_tracker.note()
    while idle_tracker.quiet() < IDLE:
        time.sleep(1.0)
    return 0


def list_entries(request: Mapping[str, Any]) -> None:
    """{"top", "path", "depth"}: print a line of JSON for each entry."""
    for entry in tree(request["top"]).entries(request["path"], int(request["depth"])):
        sys.stdout.write(json.dumps([entry.path, entry.size, entry.depth]) + "\n")
    sys.stdout.flush()


def get(request: Mapping[str, Any]) -> None:
    """{"top", "path"}: print a tar stream of a file, or of a directory with everything in it."""
    filetree.pack(_used(tree(request["top"]).items(request["path"])), sys.stdout.buffer)


def put(request: Mapping[str, Any]) -> None:
    """{"top", "path", "name"}: store the tar stream from stdin; then print its path."""
    path = tree(request["top"]).store(request["path"], request["name"], _used(filetree.unpack(sys.stdin.buffer)))
    sys.stdout.write(path + "\n")
    sys.stdout.flush()


def _used(items: Iterable[FileItem]) -> Iterator[FileItem]:
    for item in items:
        idle_tracker.note()
        source = item.source
        yield item if source is None else FileItem(item.path, item.size, item.mode, item.time, _Used(source))  # type: ignore[arg-type]


class _Used:
    """A file whose reading counts as use: a large one may take longer than a helper pod waits."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._noted_at = file, 0.0

    def read(self, count: int = -1) -> bytes:
        if time.monotonic() - self._noted_at > 5.0:
            self._noted_at = time.monotonic()
            idle_tracker.note()
        return self._file.read(count)


def _answer(work: Callable[[Mapping[str, Any]], None]) -> Callable[[List[str]], int]:
    def answered(arguments: List[str]) -> int:
        idle_tracker.note()
        try:
            work(json.loads(arguments[0]))
            return 0
        except PathNotFound as error:
            sys.stderr.write(json.dumps({"path": error.path, "near": error.near, "outside": error.outside}))
            return MISSING
        except OSError as error:  # also a bucket's refusal
            text = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            sys.stderr.write(f"{text} (user {os.getuid()}, group {os.getgid()})")
            return REFUSED

    return answered


COMMANDS: Mapping[str, Callable[[List[str]], int]] = {
    "wait": wait,
    "list": _answer(list_entries),
    "get": _answer(get),
    "put": _answer(put),
}


class _Directory:
    """A directory as a tree."""

    def __init__(self, top: str) -> None:
        self._top = top

    def entries(self, path: str, depth: int) -> List[FileEntry]:
        return filetree.entries(self._top, path, depth)

    def items(self, path: str) -> Iterator[FileItem]:
        return filetree.items(self._top, path)

    def store(self, path: str, name: str, items: Iterable[FileItem]) -> str:
        target = filetree.target(self._top, path, name)
        filetree.store(items, target)
        return os.path.relpath(target, self._top)


class _Bucket:
    """A prefix of a bucket as a tree: slashes separate directories."""

    def __init__(self, url: str) -> None:
        self._bucket, self._prefix = directory_sync.opened(url, os.environ)

    def _below(self, path: str) -> Dict[str, int]:
        """Name in the prefix -> size, for a file or everything in a directory."""
        wanted = os.path.normpath(path.strip("/")) if path.strip("/") else ""
        if wanted.startswith(".."):
            raise PathNotFound(path, outside=True)
        names = {each.key[len(self._prefix) :]: each.size for each in self._bucket.list(self._prefix + wanted)}
        sizes = {
            name: size
            for name, size in names.items()
            if name and not name.endswith("/") and (not wanted or name == wanted or name.startswith(wanted + "/"))
        }
        if not sizes and wanted:
            raise PathNotFound(path, filetree.nearest(wanted, (e.key[len(self._prefix) :] for e in self._all())))
        return sizes

    def _all(self) -> Iterable[Any]:
        return self._bucket.list(self._prefix)

    def entries(self, path: str, depth: int) -> List[FileEntry]:
        wanted = path.strip("/")
        sizes: Dict[str, int] = {}
        for name, size in self._below(path).items():
            if name == wanted:
                return [FileEntry(name, size, 0)]
            parts = name[len(wanted) :].lstrip("/").split("/")
            start = f"{wanted}/" if wanted else ""
            for level in range(1, min(max(depth, 1), len(parts)) + 1):
                key = start + "/".join(parts[:level]) + ("/" if level < len(parts) else "")
                sizes[key] = sizes.get(key, 0) + size
        base = wanted.count("/") + 1 if wanted else 0
        return [FileEntry(key, size, key.rstrip("/").count("/") - base) for key, size in sorted(sizes.items())]

    def items(self, path: str) -> Iterator[FileItem]:
        wanted = path.strip("/")
        for name, size in sorted(self._below(path).items()):
            with tempfile.TemporaryDirectory() as directory:
                copy = os.path.join(directory, "file")
                self._bucket.get(self._prefix + name, copy)
                with open(copy, "rb") as file:
                    below = "" if name == wanted else name[len(wanted) :].lstrip("/")
                    yield FileItem(below, size, 0o644, os.fstat(file.fileno()).st_mtime, file)

    def store(self, path: str, name: str, items: Iterable[FileItem]) -> str:
        target = path.strip("/")
        if path.endswith("/") or not target or any(True for _ in self._bucket.list(f"{self._prefix}{target}/")):
            target = f"{target}/{name}".lstrip("/")
        for item in items:
            if item.source is not None:
                with tempfile.TemporaryDirectory() as directory:
                    filetree.store(
                        [FileItem("", item.size, item.mode, item.time, item.source)], os.path.join(directory, "file")
                    )
                    key = f"{target}/{item.path}" if item.path else target
                    self._bucket.put(self._prefix + key, os.path.join(directory, "file"))
        return target


def tree(top: str) -> Any:
    return _Bucket(top) if top.partition("://")[0] in SCHEMES and "://" in top else _Directory(top)
