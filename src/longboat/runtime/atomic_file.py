"""Atomic file replacement: readers see the old file or the whole new one, never a part of it."""

from __future__ import annotations

import contextlib
import os
from typing import ContextManager, Iterator, Optional, Union

_ENDING = ".part"


@contextlib.contextmanager
def replacing(
    path: Union[str, os.PathLike[str]], durable: bool = False, guard: Optional[ContextManager[None]] = None
) -> Iterator[str]:
    """A path beside `path` to write to. The file there replaces `path` if the block succeeds, and is removed if not.

    durable: the file survives a power cut once it is visible. guard: held while the file is renamed."""
    folder, name = os.path.split(path)
    unfinished = os.path.join(folder, f".{name[:50]}.{os.urandom(4).hex()}{_ENDING}")
    try:
        yield unfinished
        if durable:
            flush(unfinished)
        with guard or contextlib.nullcontext():
            os.replace(unfinished, path)
        if durable:
            flush(folder or ".")
    finally:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)


def is_unfinished(name: str) -> bool:
    """Whether a file of this name is being written by `replacing`, or was when the writer was killed."""
    return name.startswith(".") and name.endswith(_ENDING) and len(name.split(".")[-2]) == 8


def write(path: Union[str, os.PathLike[str]], data: Union[str, bytes], durable: bool = False) -> None:
    """Replace a file by this text, in UTF-8, or these bytes."""
    with replacing(path, durable) as unfinished, open(unfinished, "wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)


def flush(path: str) -> None:
    """Wait until a file or the entries of a directory are on disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
