"""Files of a run by path, `RUN:path`, for `ls`, `cat` and `cp`. Never outside of the run.

A path is relative to the run directory, or `storage/NAME/...` for a mount of the job. `NAME/...` also works if the run
directory has no such name. `RunFiles` is the interface; `LocalFiles` implements it for local runs, each engine has its
own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from longboat.runtime import filetree, run_layout
from longboat.runtime.errors import LongboatError
from longboat.runtime.filetree import FileEntry, FileItem, PathNotFound
from longboat.runtime.light_dataclasses import dataclass, replace
from longboat.runtime.plan import Mount, Plan

STORAGE = "storage"
OWN = frozenset({"agents", "checkpoints", "logs", "output", "reports", "stacks", STORAGE, "superseded"})
"""Names used in a run directory: a mount with such a name needs the full path `storage/NAME`."""
OPEN = ("output", STORAGE)
"""Directories of a run that accept new files: everything else is the run's record."""


@dataclass(frozen=True)
class RunPath:
    """A parsed path: in the run directory, or in a mount."""

    path: str
    mount: Mount | None = None

    @property
    def within(self) -> str:
        """Prefix of the paths of files in it."""
        return "" if self.mount is None else f"{STORAGE}/{self.mount.name}/"


class RunFiles(Protocol):
    run: str
    where: str
    """Location of the files, for people."""
    mounts: tuple[str, ...]
    """Paths of mounts that are not in the run directory."""

    def entries(self, path: str, depth: int) -> list[FileEntry]:
        """A file, or the entries of a directory, with paths that can be passed in again."""

    def items(self, path: str) -> Iterator[FileItem]:
        """A file, or a directory with everything in it, to be read one after another."""

    def store(self, path: str, name: str, items: Iterable[FileItem]) -> str:
        """Store the items in a directory or under a new name. Returns their path."""


def spot(plan: Plan | None, path: str) -> RunPath:
    first, _, rest = path.lstrip("/").partition("/")
    mounts = {mount.name: mount for mount in plan.storage if mount.kind != "run"} if plan is not None else {}
    if first == STORAGE:
        name, _, below = rest.partition("/")
        if name in mounts:
            return RunPath(below, mounts[name])
    if first in mounts and first not in OWN:
        return RunPath(rest, mounts[first])
    return RunPath(path)


def mounts(plan: Plan | None, elsewhere: Callable[[Mount], bool]) -> tuple[str, ...]:
    return tuple(f"{STORAGE}/{mount.name}" for mount in (plan.storage if plan else ()) if elsewhere(mount))


def writable(run: str, target: RunPath) -> None:
    """Raise if only the run itself may write to the path."""
    if target.mount is not None:
        if target.mount.read_only:
            raise LongboatError(
                f"storage {target.mount.name} is read-only in this job", "remove `read_only: true` from the job file"
            )
    elif os.path.normpath(target.path.lstrip("/")).split("/")[0] not in OPEN:
        raise LongboatError(
            f"{target.path or run} is part of the run's record and cannot be changed",
            f"copy files to its storage (`{run}:storage/NAME/...`) or output (`{run}:output/STAGE/...`)",
        )


def not_there(run: str, target: RunPath, error: PathNotFound) -> LongboatError:
    path = target.within + error.path.lstrip("/")
    listed = f"list its files with `longboat ls {run}{':' + target.within if target.mount else ''}`"
    if error.outside:
        return LongboatError(f"{path} is outside of the run", listed)
    near = f"did you mean {run}:{target.within}{error.near}?" if error.near else listed
    return LongboatError(f"{run} has no file {path}", near)


class LocalFiles:
    """Files of a local run."""

    def __init__(self, run: Path, plan: Plan | None) -> None:
        self.run, self.where = run.name, str(run)
        self._dir, self._plan = str(run), plan
        self.mounts = mounts(plan, lambda mount: bool(mount.path))

    def entries(self, path: str, depth: int) -> list[FileEntry]:
        target, top = self._spot(path)
        try:
            listed = filetree.entries(top, target.path, depth)
        except PathNotFound as error:
            raise not_there(self.run, target, error) from None
        except OSError as error:
            raise LongboatError(f"cannot list {error.filename}: {error.strerror}") from None
        return [replace(entry, path=target.within + entry.path) for entry in listed]

    def items(self, path: str) -> Iterator[FileItem]:
        target, top = self._spot(path)
        try:
            yield from filetree.items(top, target.path)
        except PathNotFound as error:
            raise not_there(self.run, target, error) from None
        except PermissionError as error:
            raise LongboatError(f"cannot read {error.filename}: permission denied") from None

    def store(self, path: str, name: str, items: Iterable[FileItem]) -> str:
        target, top = self._spot(path)
        writable(self.run, target)
        try:
            destination = filetree.target(top, target.path, name)
            filetree.store(items, destination)
        except PathNotFound as error:
            raise not_there(self.run, target, error) from None
        return target.within + os.path.relpath(destination, top)

    def _spot(self, path: str) -> tuple[RunPath, str]:
        target = spot(self._plan, path)
        if target.mount is None:
            return target, self._dir
        return target, target.mount.path or run_layout.storage(self._dir, target.mount.name)
