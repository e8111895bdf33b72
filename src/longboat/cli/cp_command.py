"""Copy files or directories out of a run, or into it.

Use it to get results to this machine, or data into a job's storage.

    longboat cp RUN:output/train/weights.safetensors .
    longboat cp RUN:output ./results
    longboat cp data.csv RUN:storage/data/

RUN is a run's id, the beginning of one, or a job's name, on this machine or in a cluster, running or ended.
`RUN:storage/NAME/...` is a path in one of the job's mounts. As with `cp -r`, an existing target directory receives the
copy; otherwise the copy gets the target's name. You can copy into a run's storage and output only.

A file gets its name when all of it has arrived, so Ctrl-C leaves no partial file.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, BinaryIO

from longboat.cli import engine_options
from longboat.cli.console import Console
from longboat.runs import formatting
from longboat.runtime import filetree
from longboat.runtime.errors import OK, LongboatError
from longboat.runtime.light_dataclasses import replace

if TYPE_CHECKING:
    from longboat.runs.run_files import RunFiles
    from longboat.runtime.filetree import FileItem

SHOWN = 0.2
"""Seconds between two progress updates."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SRC", help="source: RUN:PATH, or a path on this machine")
    parser.add_argument("target", metavar="DST", help="target: RUN:PATH, or a path on this machine")
    parser.add_argument("-q", "--quiet", action="store_true", help="hide the progress")
    engine_options.add_place_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    source, target = _split(args.source), _split(args.target)
    if source is None and target is None:
        raise LongboatError(
            "neither path is in a run", "write RUN:PATH for a file of a run; `longboat ls RUN` lists them"
        )
    with contextlib.ExitStack() as stack:
        here, there = (
            None if path is None else stack.enter_context(engine_options.find(args, console, path[0] or None).files())
            for path in (source, target)
        )
        meter = _Meter(console, _size(here, source, args.source), args.quiet)
        try:
            items = meter.over(_items(here, source, args.source))
            name = _name(here, source, args.source)
            if there is None or target is None:
                where = _stored(items, args.target, name)
            else:
                where = f"{there.run}:{there.store(target[1], name, items)}"
        finally:
            meter.close()
    console.print(where)
    console.say(f"{meter.files} {'file' if meter.files == 1 else 'files'}, {formatting.size(meter.bytes)}")
    return OK


def _split(text: str) -> tuple[str, str] | None:
    """Run and path; None for a path of this machine, which may start with . or /."""
    run, colon, path = text.partition(":")
    return (run, path) if colon and "/" not in run and not run.startswith(".") else None


def _size(files: RunFiles | None, source: tuple[str, str] | None, text: str) -> int:
    """Bytes to copy; raises an error if the source does not exist."""
    if files is not None and source is not None:
        return filetree.total(files.entries(source[1], 1))
    if not os.path.exists(text):
        raise LongboatError(f"{text} does not exist on this machine", "write RUN:PATH for a file of a run")
    return filetree.tree_size(text) if os.path.isdir(text) else os.path.getsize(text)


def _items(files: RunFiles | None, source: tuple[str, str] | None, text: str) -> Iterator[FileItem]:
    if files is not None and source is not None:
        yield from files.items(source[1])
        return
    folder, name = os.path.split(os.path.abspath(text))
    try:
        yield from filetree.items(folder, name)
    except OSError as error:
        raise LongboatError(f"cannot read {error.filename}: {error.strerror}") from None


def _name(files: RunFiles | None, source: tuple[str, str] | None, text: str) -> str:
    """Name of the copy inside a directory: that of the source; for a whole run, the run's id."""
    if files is not None and source is not None:
        return os.path.basename(os.path.normpath(source[1])) if source[1].strip("/") else files.run
    return os.path.basename(os.path.abspath(text))


def _stored(items: Iterable[FileItem], text: str, name: str) -> str:
    """Stores the files on this machine and returns the path."""
    inside = text.endswith("/") or os.path.isdir(text)
    where = os.path.join(text, name) if inside else text
    try:
        filetree.store(items, where)
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise LongboatError(f"cannot write the copy: {reason}") from None
    except filetree.PathNotFound as error:
        raise LongboatError(f"the source has a path outside of the copied directory: {error.path}") from None
    return where


class _Meter:
    """Counts copied files and bytes, and shows them on a terminal."""

    def __init__(self, console: Console, size: int, quiet: bool) -> None:
        self.files, self.bytes = 0, 0
        self._console, self._size = console, size
        self._shows = console.interactive and not quiet
        self._shown = time.monotonic()
        self._drawn = False

    def over(self, items: Iterable[FileItem]) -> Iterator[FileItem]:
        for item in items:
            if item.source is None:
                yield item
            else:
                self.files += 1
                yield replace(item, source=_Counted(item.source, self._add))  # type: ignore[arg-type]

    def _add(self, count: int) -> None:
        self.bytes += count
        if self._shows and time.monotonic() - self._shown > SHOWN:
            self._shown = time.monotonic()
            part = f" of {formatting.size(self._size)}, {100 * self.bytes // self._size}%" if self._size else ""
            self._console.err.write(f"\r\x1b[K{formatting.size(self.bytes)}{part}")
            self._console.err.flush()
            self._drawn = True

    def close(self) -> None:
        if self._drawn:
            self._console.err.write("\r\x1b[K")
            self._console.err.flush()


class _Counted:
    def __init__(self, file: BinaryIO, add: Callable[[int], None]) -> None:
        self._file, self._add = file, add

    def read(self, count: int = -1) -> bytes:
        data = self._file.read(count)
        self._add(len(data))
        return data
