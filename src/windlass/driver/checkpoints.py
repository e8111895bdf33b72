"""Which checkpoints are complete, and from which one a new life resumes.

Ranks write parts; the driver alone decides that all parts of a step are there and writes that
down (`manifest.json` of the stage). A checkpoint that is not in the manifest does not exist. One
whose files are missing or of another size than was recorded is torn and never chosen.

Ranks that train together share a checkpoint; ranks of an `average` stage, which restart alone,
have each their own. A merge starts a new round, and nothing of an older round is resumed from.

Ships into strangers' images: standard library only, Python 3.9.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

from windlass.plan import Stage, build
from windlass.shapes import SHAPES

KEEP = 2


@dataclass(frozen=True)
class Complete:
    """A checkpoint with all its parts."""

    owner: str
    """`role-rank` where each rank has its own, else empty."""
    step: int
    generation: int
    round: int
    path: str
    """Directory, relative to the run's."""
    parts: Tuple[Tuple[str, int], ...]
    """File name and size of each."""


class Checkpoints:
    def __init__(self, run_dir: str, stage: Stage) -> None:
        self._run_dir = run_dir
        self._own = SHAPES[stage.shape].own_checkpoints
        self._directory = os.path.join(run_dir, "checkpoints", stage.name)
        self._file = os.path.join(self._directory, "manifest.json")
        self._parts: Dict[Tuple[str, int, int], Dict[int, Tuple[str, int]]] = {}
        self.complete: List[Complete] = self._read()

    def owner(self, role: str, rank: int) -> str:
        return f"{role}-{rank}" if self._own else ""

    def part(self, role: str, rank: int, generation: int, round_: int, record: Mapping[str, Any]) -> Optional[Complete]:
        """Takes in a part; the checkpoint, when it was the last that was missing and it is newer."""
        owner, step, of = self.owner(role, rank), int(record["step"]), int(record["of"])
        directory, name = os.path.split(str(record["path"]))
        parts = self._parts.setdefault((owner, generation, step), {})
        parts[int(record["part"])] = (name, int(record["bytes"]))
        newest = self.newest(owner, round_)
        if len(parts) < of or newest is not None and newest.step >= step:
            return None
        for key in [k for k in self._parts if k[0] == owner and k[2] <= step]:
            del self._parts[key]
        found = Complete(
            owner,
            step,
            generation,
            round_,
            os.path.relpath(directory, self._run_dir),
            tuple(parts[number] for number in sorted(parts)),
        )
        old = self._keep(found, int(record.get("keep", KEEP)))
        self._write()
        for each in old:
            import shutil

            shutil.rmtree(os.path.join(self._run_dir, each.path), ignore_errors=True)
        return found

    def newest(self, owner: str, round_: int) -> Optional[Complete]:
        mine = [c for c in self.complete if c.owner == owner and c.round == round_]
        return max(mine, key=lambda c: (c.step, c.generation)) if mine else None

    def resume(self, role: str, rank: int, round_: int) -> Tuple[str, int]:
        """(directory, step) of the newest whole checkpoint for a rank; ("", -1) when there is none."""
        owner = self.owner(role, rank)
        mine = [c for c in self.complete if c.owner == owner and c.round == round_]
        for found in sorted(mine, key=lambda c: (c.step, c.generation), reverse=True):
            path = os.path.join(self._run_dir, found.path)
            if all(_size(os.path.join(path, name)) == size for name, size in found.parts):
                return path, found.step
        return "", -1

    def _keep(self, new: Complete, most: int) -> List[Complete]:
        """Adds the new one; gives those of its owner that are too many now."""
        mine = sorted([c for c in self.complete if c.owner == new.owner] + [new], key=lambda c: (c.round, c.step))
        old = mine[: max(0, len(mine) - max(most, 1))]
        self.complete = [c for c in self.complete if c not in old] + [new]
        return old

    def _read(self) -> List[Complete]:
        try:
            with open(self._file) as file:
                return [build(Complete, item) for item in json.load(file)["complete"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def _write(self) -> None:
        os.makedirs(self._directory, exist_ok=True)
        with open(self._file + ".new", "w") as file:
            json.dump({"complete": [asdict(c) for c in self.complete]}, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        os.replace(self._file + ".new", self._file)


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return -1
