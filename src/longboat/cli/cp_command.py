"""Copies files out of a run, or into it: a file, or a directory with all in it.

    longboat cp RUN:output/train/weights.safetensors .
    longboat cp RUN:output ./results
    longboat cp data.csv RUN:storage/data/

RUN is a run's id, the beginning of one, or a job's name; on this machine or in a cluster, under way
or ended. `RUN:storage/NAME/...` is a path in one of the job's mounts. As with the shell's `cp -r`,
what is copied to a directory that is there goes into it, else it gets the new name. Into a run goes
only what does not change what it did: its storage, and its output.

A file appears under its name when all of it has arrived, so Ctrl-C leaves no half file.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO

from longboat.cli import engine_options
from longboat.cli.console import Console
from longboat.runs import formatting
from longboat.runtime import filetree
from longboat.runtime.errors import OK, LongboatError

if TYPE_CHECKING:
    from longboat.runs.run_files import RunFiles
    from longboat.runtime.filetree import FileItem

SHOWN = 0.2
"""Seconds between two looks at how far it is."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SRC", help="RUN:PATH, or a path of this machine")
    parser.add_argument("target", metavar="DST", help="the same; a directory that is there, or the new name")
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")
    engine_options.add_place_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    source, target = _split(args.source), _split(args.target)
    if source is None and target is None:
        raise LongboatError("neither is a path of a run", "write a run's as RUN:PATH, `longboat ls RUN` lists them")
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
    """Run and path; None for a path of this machine. What begins with . or / is always that."""
    run, colon, path = text.partition(":")
    return (run, path) if colon and "/" not in run and not run.startswith(".") else None


def _size(shelf: RunFiles | None, source: tuple[str, str] | None, text: str) -> int:
    """Bytes to be copied; raises if there is nothing of that name."""
    if shelf is not None and source is not None:
        return filetree.total(shelf.entries(source[1], 1))
    if not os.path.exists(text):
        raise LongboatError(f"there is no {text} on this machine", "a path of a run is written RUN:PATH")
    return filetree.tree_size(text) if os.path.isdir(text) else os.path.getsize(text)


def _items(shelf: RunFiles | None, source: tuple[str, str] | None, text: str) -> Iterator[FileItem]:
    if shelf is not None and source is not None:
        yield from shelf.items(source[1])
        return
    folder, name = os.path.split(os.path.abspath(text))
    try:
        yield from filetree.items(folder, name)
    except OSError as error:
        raise LongboatError(f"{error.filename} may not be read: {error.strerror}") from None


def _name(shelf: RunFiles | None, source: tuple[str, str] | None, text: str) -> str:
    """What the copy is called in a directory: as the original, and all of a run as the run."""
    if shelf is not None and source is not None:
        return os.path.basename(os.path.normpath(source[1])) if source[1].strip("/") else shelf.run
    return os.path.basename(os.path.abspath(text))


def _stored(items: Iterable[FileItem], text: str, name: str) -> str:
    """Puts them on this machine."""
    inside = text.endswith("/") or os.path.isdir(text)
    where = os.path.join(text, name) if inside else text
    try:
        filetree.store(items, where)
    except OSError as error:
        told = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise LongboatError(f"it cannot be written: {told}") from None
    except filetree.PathNotFound as error:
        raise LongboatError(f"the copy holds a path that leads out of it: {error.path}") from None
    return where


class _Meter:
    """Counts what goes through, and shows it where somebody looks."""

    def __init__(self, console: Console, size: int, quiet: bool) -> None:
        self.files, self.bytes = 0, 0
        self._world, self._size = console, size
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
            self._world.err.write(f"\r\x1b[K{formatting.size(self.bytes)}{part}")
            self._world.err.flush()
            self._drawn = True

    def close(self) -> None:
        if self._drawn:
            self._world.err.write("\r\x1b[K")
            self._world.err.flush()


class _Counted:
    def __init__(self, file: BinaryIO, tell: Callable[[int], None]) -> None:
        self._file, self._tell = file, tell

    def read(self, count: int = -1) -> bytes:
        data = self._file.read(count)
        self._tell(len(data))
        return data
