"""Writes image layers: compressed tars whose bytes depend only on their contents.

Entries are sorted and owned by root, modification times are the epoch, and modes are 0755 or 0644. User, time, machine
and umask of the build do not matter.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Iterable, Mapping
from typing import IO

from longboat.runtime import atomic_file
from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import dataclass

EPOCH = 315532800
"""1980, the earliest time in zip files, which some tools make of layers. SOURCE_DATE_EPOCH overrides it."""


@dataclass(frozen=True)
class LayerFile:
    """A file for a layer, from disk or from bytes."""

    name: str
    """Path in the image, without a leading slash."""
    path: str = ""
    content: bytes = b""
    executable: bool = False
    link: str = ""
    """Target, for a symbolic link."""


@dataclass(frozen=True)
class Layer:
    digest: str
    diff_id: str
    """Digest of the uncompressed tar."""
    size: int
    path: str


def epoch(environ: Mapping[str, str]) -> int:
    given = environ.get("SOURCE_DATE_EPOCH", "")
    if given and not given.isdigit():
        raise LongboatError(f"SOURCE_DATE_EPOCH={given} is not a number of seconds", "unset it, or set it to a number")
    return int(given) if given else EPOCH


def tree(directory: str, at: str, names: Iterable[str]) -> list[LayerFile]:
    """Files of a directory, for the path `at` in the image."""
    files = []
    for name in names:
        path = os.path.join(directory, name)
        executable = bool(os.stat(path).st_mode & 0o100)
        files.append(LayerFile(f"{at}/{name}", path, executable=executable))
    return files


def write(files: Iterable[LayerFile], path: str, when: int) -> Layer:
    """Write the layer. OSError if a file cannot be read."""
    wanted = {file.name: file for file in files}
    folders = {parent for name in wanted for parent in _parents(name)}
    with atomic_file.replacing(path) as unfinished, open(unfinished, "wb") as raw:
        outer = _Hashing(raw)
        with gzip.GzipFile("", "wb", 6, outer, mtime=0) as packed:
            inner = _Hashing(packed)  # type: ignore[arg-type]
            with tarfile.open(fileobj=inner, mode="w", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
                for name in sorted(folders | set(wanted)):
                    _add(tar, name, wanted.get(name), when)
    return Layer(outer.digest, inner.digest, os.path.getsize(path), path)


def _add(tar: tarfile.TarFile, name: str, file: LayerFile | None, when: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.mtime = when
    if file is None:
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(entry)
    elif file.link:
        entry.type, entry.mode, entry.linkname = tarfile.SYMTYPE, 0o777, file.link
        tar.addfile(entry)
    else:
        entry.mode = 0o755 if file.executable else 0o644
        with open(file.path, "rb") if file.path else io.BytesIO(file.content) as source:
            entry.size = os.fstat(source.fileno()).st_size if file.path else len(file.content)
            tar.addfile(entry, source)


def _parents(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


class _Hashing:
    """A writer that also computes the digest."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target
        self._sum = hashlib.sha256()
        self._written = 0

    def write(self, data: bytes) -> int:
        self._sum.update(data)
        self._written += len(data)
        self._target.write(data)
        return len(data)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        self._target.flush()

    @property
    def digest(self) -> str:
        return f"sha256:{self._sum.hexdigest()}"
