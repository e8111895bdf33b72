"""Build cache: what clusters are built from, by the hash of its inputs, shared by all checkouts of the user.

The name of an entry ends with that hash, so checkouts at different commits never take each other's. An entry is made in
a scratch directory under its lock and renamed into place when it is complete: two builds at once make it once, and a
build that is killed leaves nothing that looks complete. Entries that no build has used for 30 days are removed.
"""

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.cluster.places import cache, locked

UNUSED_DAYS = 30
_KINDS = ("bin", "go-wheel", "images", "layers", "stores", "tools")


def entry(kind: str, name: str, inputs: Iterable[str | Path], make: Callable[[Path], Path], suffix: str = "") -> Path:
    """The entry made from these inputs (a path stands for the file's contents).

    If it is not there, `make` gets an empty directory and returns the file or directory that becomes the entry.
    """
    assert kind in _KINDS, kind
    path = cache() / kind / f"{name}-{digest(inputs)}{suffix}"
    if not _use(path):
        with locked(cache() / "locks" / f"{kind}-{name}.lock"):
            if not _use(path):
                _make(path, make, cache() / "scratch" / f"{kind}-{name}")
                prune()
    return path


def digest(inputs: Iterable[str | Path]) -> str:
    total = hashlib.sha256()
    for each in inputs:
        content = each.read_bytes() if isinstance(each, Path) else each.encode()
        total.update(len(content).to_bytes(8, "big") + content)
    return total.hexdigest()[:12]


def _use(path: Path) -> bool:
    """Whether it is there; from now on it counts as used today."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _make(path: Path, make: Callable[[Path], Path], scratch: Path) -> None:
    shutil.rmtree(scratch, ignore_errors=True)  # a killed build may have left it
    scratch.mkdir(parents=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        make(scratch).rename(path)
        os.utime(path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def prune() -> None:
    """Remove the entries that no build has used for UNUSED_DAYS."""
    oldest = time.time() - UNUSED_DAYS * 24 * 3600
    for kind in _KINDS:
        for path in (cache() / kind).glob("*"):
            with contextlib.suppress(FileNotFoundError):  # another build has just removed it
                if path.stat().st_mtime < oldest:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
