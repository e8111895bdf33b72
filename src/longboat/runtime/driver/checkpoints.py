"""Which checkpoints are complete, and from which one an incarnation resumes.

Ranks write parts. Only the driver decides that all parts of a step exist, and records that in the stage's
`manifest.json`. A checkpoint that is not in the manifest does not exist. A checkpoint with missing files,
files of the wrong size or with a header that does not match is broken and never used.

Ranks that train together share a checkpoint; ranks of an `average` stage restart alone and have their own.
A merge starts a new round; checkpoints of older rounds are not used.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from longboat.runtime import atomic_file, run_layout, tensors
from longboat.runtime.light_dataclasses import asdict, dataclass, replace
from longboat.runtime.plan import Stage, build
from longboat.runtime.shapes import SHAPES

KEEP = 2


@dataclass(frozen=True)
class CompleteCheckpoint:
    """A checkpoint with all its parts."""

    owner: str
    """`role-rank` if each rank has its own, else empty."""
    step: int
    generation: int
    round: int
    path: str
    """Directory, relative to the run directory."""
    parts: Tuple[Tuple[str, int], ...]
    """File name and size of each."""


class Checkpoints:
    """Complete checkpoints of one stage."""

    def __init__(self, run_dir: str, stage: Stage, inherited: int = 0) -> None:
        """inherited: parts of generations up to this one may have been reported only to an earlier driver."""
        self._run_dir, self._stage = run_dir, stage.name
        self._per_rank = SHAPES[stage.shape].own_checkpoints
        self._inherited = inherited
        self._directory = os.path.join(run_dir, "checkpoints", stage.name)
        self._file = os.path.join(self._directory, "manifest.json")
        self._parts: Dict[Tuple[str, int, int], Dict[int, Tuple[str, int]]] = {}
        self.complete: List[CompleteCheckpoint] = self._read()

    def tidy(self, generation: int, owners: Iterable[str]) -> None:
        """Remove the empty directories of a generation that wrote no checkpoint."""
        for owner in (*owners, ""):
            with contextlib.suppress(OSError):
                os.rmdir(run_layout.checkpoints(self._run_dir, self._stage, generation, owner))

    def owner(self, role: str, rank: int) -> str:
        return f"{role}-{rank}" if self._per_rank else ""

    def part(
        self, role: str, rank: int, generation: int, round_: int, record: Mapping[str, Any]
    ) -> Optional[CompleteCheckpoint]:
        """Record a part; returns the checkpoint if this part completes it and it is the newest.
        Raises OSError if it cannot be recorded: then the checkpoint does not exist."""
        owner, step, of = self.owner(role, rank), int(record["step"]), int(record["of"])
        path, name = os.path.split(str(record["path"]))
        directory = os.path.join(self._run_dir, path)
        known = next((c for c in self.complete if c.path == path), None)
        if known is not None:
            self._rewritten(known, name, int(record["bytes"]))
            return None
        if (owner, generation, step) not in self._parts:
            self._parts[owner, generation, step] = (
                _parts_on_disk(directory, of) if generation <= self._inherited else {}
            )
        parts = self._parts[owner, generation, step]
        parts[int(record["part"])] = (name, int(record["bytes"]))
        if len(parts) < of:
            return None
        newest = self.newest(owner, round_)
        if newest is not None and newest.step >= step:
            _remove(directory)
            return None
        checkpoint = CompleteCheckpoint(
            owner, step, generation, round_, path, tuple(parts[number] for number in sorted(parts))
        )
        mine = sorted([c for c in self.complete if c.owner == owner] + [checkpoint], key=_age)
        old = mine[: max(0, len(mine) - max(int(record.get("keep", KEEP)), 1))]
        self._write([c for c in [*self.complete, checkpoint] if c not in old])
        for key in [k for k in self._parts if k[0] == owner and k[2] <= step]:
            del self._parts[key]
        for each in old:
            _remove(os.path.join(self._run_dir, each.path))
        return checkpoint

    def newest(self, owner: str, round_: int) -> Optional[CompleteCheckpoint]:
        mine = [c for c in self.complete if c.owner == owner and c.round == round_]
        return max(mine, key=_age) if mine else None

    def resume(self, role: str, rank: int, round_: int) -> Tuple[str, int]:
        """(directory, step) of the newest intact checkpoint for a rank; ("", -1) if there is none. The directory is
        relative to the run directory, which may differ on an agent. Broken ones are removed from the list: their
        step will be computed, and may be saved, again."""
        owner = self.owner(role, rank)
        while True:
            checkpoint = self.newest(owner, round_)
            if checkpoint is None:
                return "", -1
            path = os.path.join(self._run_dir, checkpoint.path)
            if all(_intact(os.path.join(path, name), size) for name, size in checkpoint.parts):
                return checkpoint.path, checkpoint.step
            self.complete = [c for c in self.complete if c is not checkpoint]

    def sweep(self, generation: int) -> None:
        """Remove incomplete checkpoints of dead generations: they will never be completed."""
        kept = {os.path.join(self._run_dir, c.path) for c in self.complete}
        for name in _names(self._directory):
            generation_dir = os.path.join(self._directory, name)
            number = name.rpartition("generation-")[2]
            if number.isdigit() and int(number) < generation:
                for owner in _names(generation_dir) if self._per_rank else [""]:
                    for step in _names(os.path.join(generation_dir, owner)):
                        if os.path.join(generation_dir, owner, step) not in kept:
                            _remove(os.path.join(generation_dir, owner, step))
                    _remove_empty(os.path.join(generation_dir, owner).rstrip("/"))
                _remove_empty(generation_dir)

    def _rewritten(self, known: CompleteCheckpoint, name: str, size: int) -> None:
        """Update the size of a part of a step that was saved again in the same place."""
        parts = tuple((each, size if each == name else old) for each, old in known.parts)
        if parts != known.parts:
            self._write([replace(c, parts=parts) if c is known else c for c in self.complete])

    def _read(self) -> List[CompleteCheckpoint]:
        try:
            with open(self._file, encoding="utf-8") as file:
                return [build(CompleteCheckpoint, item) for item in json.load(file)["complete"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def _write(self, complete: List[CompleteCheckpoint]) -> None:
        os.makedirs(self._directory, exist_ok=True)
        text = json.dumps({"complete": [asdict(c) for c in complete]}, indent=2)
        atomic_file.write(self._file, text, durable=True)
        self.complete = complete


def _age(checkpoint: CompleteCheckpoint) -> Tuple[int, int]:
    """Sort key. Generations are never counted anew; rounds are, in another attempt."""
    return checkpoint.generation, checkpoint.step


def _intact(path: str, size: int) -> bool:
    try:
        return os.path.getsize(path) == size and tensors.is_complete(path)
    except OSError:
        return False


def _parts_on_disk(directory: str, of: int) -> Dict[int, Tuple[str, int]]:
    """Parts of a checkpoint on disk; a part gets its final name only when it is complete."""
    parts = {}
    for name in _names(directory):
        number = name.partition("-")[2].partition("-")[0]
        if number.isdigit() and name == run_layout.part(int(number), of):
            with contextlib.suppress(OSError):
                parts[int(number)] = (name, os.path.getsize(os.path.join(directory, name)))
    return parts


def _names(directory: str) -> List[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _remove(directory: str) -> None:
    import shutil

    shutil.rmtree(directory, ignore_errors=True)


def _remove_empty(directory: str) -> None:
    try:
        os.rmdir(directory)
    except OSError:
        pass
