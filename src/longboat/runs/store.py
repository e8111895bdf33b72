"""The directory of runs: making one, finding one by what a person types, removing one.

A run is a directory and its name is the run's id. Whether a run is under way is answered by
the lock that its driver holds, never by a pid that may have been given to somebody else.
What stands inside a run is the business of the other rooms.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from longboat.runtime import driver_lock, journal, run_layout
from longboat.runtime.errors import LongboatError
from longboat.runtime.filetree import tree_size as tree_size

REMOVING = ".removing-"

_CONSONANTS, _VOWELS = "bdfghjklmnprstvz", "aiou"


def alive(run: Path) -> bool:
    """Is the run's driver alive: does some process hold its lock; of a copy, does its original say so."""
    told = mirrored(run)
    if told is not None:
        return bool(told.get("alive"))
    return driver_lock.holder(str(run)) != 0


def mirrored(run: Path) -> dict[str, Any] | None:
    """What a copy says of its original; None for a run that is no copy."""
    try:
        with open(run / run_layout.MIRROR, encoding="utf-8") as file:
            return dict(json.load(file))
    except (OSError, ValueError):
        return None


def fresh_id(name: str) -> str:
    """An id for a new run of a job."""
    return f"{name}-{_word(int.from_bytes(os.urandom(2), 'big'))}"


class Store:
    """The runs under one home directory."""

    def __init__(self, home: str | os.PathLike[str]) -> None:
        self.root = Path(home) / "runs"

    def create(self, name: str) -> Path:
        """A new run directory of the job `name`; its name is the run's id."""
        try:
            self.root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.root.mkdir(mode=0o700, exist_ok=True)
            while True:
                run = self.root / fresh_id(name)
                try:
                    run.mkdir(mode=0o700)
                    return run
                except FileExistsError:
                    continue
        except OSError as error:
            raise LongboatError(
                f"a run cannot be kept in {self.root}: {error.strerror}",
                "make that directory writable, or name another: `export LONGBOAT_HOME=DIRECTORY`",
            ) from None

    def ids(self) -> list[str]:
        """All runs, the newest first."""
        try:
            with os.scandir(self.root) as entries:
                names = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise LongboatError(
                f"the runs in {self.root} cannot be read: {error.strerror}", "set LONGBOAT_HOME to where the runs are"
            ) from None
        return sorted(names, key=lambda name: (born(self.root / name), name), reverse=True)

    def find(self, text: str | None = None) -> Path:
        """The run meant by an id, a job's name (its newest run), or the beginning of an id or of its last part."""
        ids = self.ids()
        if not ids:
            raise LongboatError(f"there are no runs in {self.root}", "start one: `longboat run job.yaml`")
        if text is None or text in ids:
            return self.root / (text or ids[0])
        for name in ids:
            if _job(name) == text:
                return self.root / name
        found = [name for name in ids if text and (name.startswith(text) or name.rpartition("-")[2].startswith(text))]
        if len(found) == 1:
            return self.root / found[0]
        if found:
            raise LongboatError(f"{text!r} may mean {_listed(found)}", "type more of the id")
        raise LongboatError(f"there is no run {text!r} in {self.root}", self._nearest(text, ids))

    def _nearest(self, text: str, ids: list[str]) -> str:
        import difflib

        words = [*ids, *{_job(name) for name in ids}]
        near = difflib.get_close_matches(text, words, n=1)
        return f"did you mean {near[0]}?" if near else "`longboat status` lists the runs"

    def remove(self, run: Path) -> None:
        """Removes a run that is not under way. Killed in the middle, it leaves a hidden
        directory that the next removal sweeps up, never half a run."""
        hidden = self.root / f"{REMOVING}{run.name}-{os.getpid()}"
        held = None
        try:
            if (run / run_layout.LOCK).exists() and (held := driver_lock.try_take(str(run))) is None:
                raise LongboatError(
                    f"{run.name} is under way",
                    f"stop it first: `longboat stop {run.name}`, or `longboat rm --force {run.name}`",
                )
            try:
                run.rename(hidden)
            except FileNotFoundError:
                return
            except OSError as error:
                raise LongboatError(f"{run} cannot be removed: {error.strerror}") from None
        finally:
            if held is not None:
                os.close(held)
        self.sweep()
        if hidden.exists():
            raise LongboatError(
                f"{run.name} is removed, but files of it stay in {hidden}",
                f"remove them with the rights needed: `rm -r {hidden}`",
            )

    def sweep(self) -> None:
        """Clears away what earlier removals left behind."""
        try:
            leftovers = [name for name in os.listdir(self.root) if name.startswith(REMOVING)]
        except OSError:
            return
        for name in leftovers:
            shutil.rmtree(self.root / name, onerror=_force)


def born(run: Path) -> float:
    """When the run began: its first event's time, or the directory's own."""
    try:
        with open(run / journal.FILE, "rb") as file:
            return float(json.loads(file.readline(65536))["t"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    try:
        return run.stat().st_mtime
    except OSError:
        return 0.0


def _word(number: int) -> str:
    """16 bits as five letters that can be said aloud."""
    letters = [_CONSONANTS[number & 15], _VOWELS[number >> 4 & 3], _CONSONANTS[number >> 6 & 15]]
    return "".join([*letters, _VOWELS[number >> 10 & 3], _CONSONANTS[number >> 12 & 15]])


def _job(run_id: str) -> str:
    return run_id.rpartition("-")[0]


def _listed(ids: list[str]) -> str:
    return " or ".join(ids) if len(ids) < 7 else ", ".join(ids[:6]) + f" or {len(ids) - 6} more"


def _force(delete: Callable[[str], Any], path: str, _error: Any) -> None:
    """A directory that a rank made read-only is opened up and tried once more."""
    try:
        for place in (os.path.dirname(path), path):
            mode = os.lstat(place).st_mode
            if stat.S_ISDIR(mode):
                os.chmod(place, mode | stat.S_IRWXU)
        if delete in (os.unlink, os.rmdir):
            delete(path)
        else:
            shutil.rmtree(path, ignore_errors=True)
    except OSError:
        pass
