"""The files of a run by their path within it, `RUN:path`: listed, read, added to, never outside of the run.

A path is one of the run directory, or `storage/NAME/...` of one of the job's mounts, wherever that
lies; `NAME/...` alone will do when the run directory has nothing of that name. `Shelf` is what
`ls`, `cat` and `cp` see of a run; here is that of a run on this machine, the engines have others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from longboat.runtime import filetree, run_layout
from longboat.runtime.errors import LongboatError
from longboat.runtime.filetree import FileEntry, FileItem, PathNotFound
from longboat.runtime.plan import Mount, Plan

STORAGE = "storage"
OWN = frozenset({"checkpoints", "logs", "output", "reports", "stacks", STORAGE, "superseded"})
"""Names that a run directory may itself have: a mount of such a name is reached by `storage/NAME` alone."""
OPEN = ("output", STORAGE)
"""The parts of a run directory that may be added to: all else is evidence of what the run did."""


@dataclass(frozen=True)
class RunPath:
    """What a path means: a place of the run directory, or one in a mount."""

    path: str
    mount: Mount | None = None

    @property
    def within(self) -> str:
        """What stands before the path of a file that is found there."""
        return "" if self.mount is None else f"{STORAGE}/{self.mount.name}/"


class RunFiles(Protocol):
    run: str
    where: str
    """Where the files are, for the reader."""
    mounts: tuple[str, ...]
    """Paths of storage that a list of the run directory does not show."""

    def entries(self, path: str, depth: int) -> list[FileEntry]:
        """A file, or what is in a directory; their paths are such as can be asked for again."""

    def items(self, path: str) -> Iterator[FileItem]:
        """A file, or a directory with all in it, to be read one after another."""

    def store(self, path: str, name: str, items: Iterable[FileItem]) -> str:
        """Puts them there, below a directory or under a new name; where they are now."""


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


def writable(run: str, found: RunPath) -> None:
    """Raises for a place that nobody but the run may write to."""
    if found.mount is not None:
        if found.mount.read_only:
            raise LongboatError(f"storage {found.mount.name} is read-only in this job", "leave out `read_only: true`")
    elif os.path.normpath(found.path.lstrip("/")).split("/")[0] not in OPEN:
        raise LongboatError(
            f"{found.path or run} is the run's own record, and is not changed by hand",
            f"files can be put into its storage (`{run}:storage/NAME/...`) and its output (`{run}:output/STAGE/...`)",
        )


def not_there(run: str, found: RunPath, error: PathNotFound) -> LongboatError:
    path = found.within + error.path.lstrip("/")
    listed = f"`longboat ls {run}{':' + found.within if found.mount else ''}` lists what is in it"
    if error.outside:
        return LongboatError(f"{path} leads out of the run", listed)
    near = f"did you mean {run}:{found.within}{error.near}?" if error.near else listed
    return LongboatError(f"{run} has no {path}", near)


class LocalFiles:
    """The files of a run of this machine."""

    def __init__(self, run: Path, plan: Plan | None) -> None:
        self.run, self.where = run.name, str(run)
        self._dir, self._plan = str(run), plan
        self.mounts = mounts(plan, lambda mount: bool(mount.path))

    def entries(self, path: str, depth: int) -> list[FileEntry]:
        found, top = self._spot(path)
        try:
            listed = filetree.entries(top, found.path, depth)
        except PathNotFound as error:
            raise not_there(self.run, found, error) from None
        except OSError as error:
            raise LongboatError(f"{error.filename} cannot be listed: {error.strerror}") from None
        return [replace(entry, path=found.within + entry.path) for entry in listed]

    def items(self, path: str) -> Iterator[FileItem]:
        found, top = self._spot(path)
        try:
            yield from filetree.items(top, found.path)
        except PathNotFound as error:
            raise not_there(self.run, found, error) from None
        except PermissionError as error:
            raise LongboatError(f"{error.filename} may not be read") from None

    def store(self, path: str, name: str, items: Iterable[FileItem]) -> str:
        found, top = self._spot(path)
        writable(self.run, found)
        try:
            place = filetree.target(top, found.path, name)
            filetree.store(items, place)
        except PathNotFound as error:
            raise not_there(self.run, found, error) from None
        return found.within + os.path.relpath(place, top)

    def _spot(self, path: str) -> tuple[RunPath, str]:
        found = spot(self._plan, path)
        if found.mount is None:
            return found, self._dir
        return found, found.mount.path or run_layout.storage(self._dir, found.mount.name)
