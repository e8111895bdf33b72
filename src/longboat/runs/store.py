"""The directory of runs: creates, finds and removes runs.

A run is a directory named after the run's ID. A run is active while its driver holds its lock; a pid is no proof,
because it may have been reused. The other modules read the contents of a run.
"""

from __future__ import annotations

import json
import os
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
    """Whether the run's driver is alive: a process holds its lock, or its replica says so."""
    origin = replica_origin(run)
    if origin is not None:
        return bool(origin.get("alive"))
    return driver_lock.holder(str(run)) != 0


def replica_origin(run: Path) -> dict[str, Any] | None:
    """Where the run of a replica is, and whether it is alive; None if the run is not a replica."""
    try:
        with open(run / run_layout.REPLICA, encoding="utf-8") as file:
            return dict(json.load(file))
    except (OSError, ValueError):
        return None


def fresh_id(name: str) -> str:
    """A random ID for a new run of a job."""
    return f"{name}-{_word(int.from_bytes(os.urandom(2), 'big'))}"


class Store:
    """The runs in one home directory."""

    def __init__(self, home: str | os.PathLike[str]) -> None:
        self.root = Path(home) / "runs"

    def create(self, name: str) -> Path:
        """Create a run directory for the job `name`, named after the new run's ID."""
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
                f"cannot create a run in {self.root}: {error.strerror}",
                "make that directory writable, or use another: `export LONGBOAT_HOME=DIRECTORY`",
            ) from None

    def ids(self) -> list[str]:
        """IDs of all runs, newest first."""
        try:
            with os.scandir(self.root) as entries:
                names = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise LongboatError(
                f"cannot read the runs in {self.root}: {error.strerror}",
                "set LONGBOAT_HOME to the directory with your runs",
            ) from None
        return sorted(names, key=lambda name: (born(self.root / name), name), reverse=True)

    def find(self, text: str | None = None) -> Path:
        """The run with this ID, job name (its newest run), or unique prefix of an ID or of its last part."""
        ids = self.ids()
        if not ids:
            raise LongboatError(f"no runs in {self.root}", "start one: `longboat run job.yaml`")
        if text is None or text in ids:
            return self.root / (text or ids[0])
        for name in ids:
            if _job(name) == text:
                return self.root / name
        matches = [name for name in ids if text and (name.startswith(text) or name.rpartition("-")[2].startswith(text))]
        if len(matches) == 1:
            return self.root / matches[0]
        if matches:
            raise LongboatError(f"{text!r} is ambiguous: {_listed(matches)}", "use a longer prefix of the ID")
        raise LongboatError(f"no run {text!r} in {self.root}", self._nearest(text, ids))

    def _nearest(self, text: str, ids: list[str]) -> str:
        import difflib

        known = [*ids, *{_job(name) for name in ids}]
        near = difflib.get_close_matches(text, known, n=1)
        return f"did you mean {near[0]}?" if near else "list the runs with `longboat status`"

    def remove(self, run: Path) -> None:
        """Remove a run that is not active.

        If this is interrupted, a hidden directory remains, never half a run; the next removal deletes it."""
        hidden = self.root / f"{REMOVING}{run.name}-{os.getpid()}"
        held = None
        try:
            if (run / run_layout.LOCK).exists() and (held := driver_lock.try_take(str(run))) is None:
                raise LongboatError(
                    f"{run.name} is still running",
                    f"stop it first: `longboat stop {run.name}`, or `longboat rm --force {run.name}`",
                )
            try:
                run.rename(hidden)
            except FileNotFoundError:
                return
            except OSError as error:
                raise LongboatError(f"cannot remove {run}: {error.strerror}") from None
        finally:
            if held is not None:
                os.close(held)
        self.sweep()
        if hidden.exists():
            raise LongboatError(
                f"{run.name} is removed, but some of its files remain in {hidden}",
                f"delete them as a user with permission: `rm -r {hidden}`",
            )

    def sweep(self) -> None:
        """Delete the leftovers of interrupted removals."""
        try:
            leftovers = [name for name in os.listdir(self.root) if name.startswith(REMOVING)]
        except OSError:
            return
        if leftovers:
            import shutil  # not at the top: every launch comes here

            for name in leftovers:
                shutil.rmtree(self.root / name, onerror=_force)


def born(run: Path) -> float:
    """When the run started: the time of its first event, or of the directory."""
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
    """16 bits as a pronounceable word of five letters."""
    letters = [_CONSONANTS[number & 15], _VOWELS[number >> 4 & 3], _CONSONANTS[number >> 6 & 15]]
    return "".join([*letters, _VOWELS[number >> 10 & 3], _CONSONANTS[number >> 12 & 15]])


def _job(run_id: str) -> str:
    return run_id.rpartition("-")[0]


def _listed(ids: list[str]) -> str:
    return " or ".join(ids) if len(ids) < 7 else ", ".join(ids[:6]) + f" or {len(ids) - 6} more"


def _force(delete: Callable[[str], Any], path: str, _error: Any) -> None:
    """Make a read-only directory writable and retry the deletion."""
    try:
        for directory in (os.path.dirname(path), path):
            mode = os.lstat(directory).st_mode
            if stat.S_ISDIR(mode):
                os.chmod(directory, mode | stat.S_IRWXU)
        if delete in (os.unlink, os.rmdir):
            delete(path)
        else:
            import shutil

            shutil.rmtree(path, ignore_errors=True)
    except OSError:
        pass
