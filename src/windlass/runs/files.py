"""The files of a run by their path within it: `RUN:path`, listed and found, never outside of the run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from windlass.errors import WindlassError
from windlass.runs.store import Store, tree_size


@dataclass(frozen=True)
class Entry:
    path: str
    """Within the run; a directory's ends with a slash."""
    size: int
    depth: int


def split(store: Store, text: str | None) -> tuple[Path, str]:
    """`RUN:path`, `RUN` or `:path` (of the newest run)."""
    run, _, path = (text or "").partition(":")
    return store.find(run or None), path


def below(name: str, path: str) -> bool:
    """Is a file of a run the one that a path means, or in the directory that it means."""
    wanted = os.path.normpath(path.strip("/")) if path.strip("/") else ""
    return not wanted or name == wanted or name.startswith(wanted + "/")


def inside(run: Path, path: str) -> Path:
    """The place a path means; one that leads out of the run, by dots or by a link, is refused."""
    found = Path(os.path.normpath(run / path.lstrip("/")))
    real, root = os.path.realpath(found), os.path.realpath(run)
    if os.path.commonpath([real, root]) != root:
        raise WindlassError(f"{path} leads out of the run", f"`windlass ls {run.name}` lists what is in it")
    if not os.path.lexists(found):
        raise WindlassError(f"{run.name} has no {path}", _nearest(run, path))
    return found


def _nearest(run: Path, path: str) -> str:
    import difflib

    near = difflib.get_close_matches(path, [entry.path for entry in walk(run, run, 9)], n=1)
    return f"did you mean {run.name}:{near[0]}?" if near else f"`windlass ls {run.name}` lists what is in it"


def walk(run: Path, start: Path, depth: int, level: int = 0) -> Iterator[Entry]:
    """Everything below a place, names in order, down to a depth; a directory's size is that of all in it.
    Hidden files at the run's top are Windlass's own and left out."""
    try:
        with os.scandir(start) as entries:
            found = sorted((e for e in entries if start != run or not e.name.startswith(".")), key=lambda e: e.name)
    except OSError as error:
        raise WindlassError(f"{start} cannot be listed: {error.strerror}") from None
    for entry in found:
        name = os.path.relpath(entry.path, run)
        if entry.is_dir(follow_symlinks=False):
            yield Entry(name + "/", tree_size(Path(entry.path)), level)
            if level + 1 < depth:
                yield from walk(run, Path(entry.path), depth, level + 1)
        else:
            yield Entry(name, entry.stat(follow_symlinks=False).st_size, level)
