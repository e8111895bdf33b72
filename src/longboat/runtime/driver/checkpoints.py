"""Which checkpoints are complete, and from which one an incarnation resumes.

Ranks write parts. Only the driver decides that all parts of a step exist, and records that in the stage's
`manifest.json`, with the checksum of each part. A checkpoint is verified before a generation resumes from it: with a
missing file or a wrong checksum it is damaged, and the one before it is used. A damaged checkpoint stays on disk until
newer ones push it out. A damaged manifest is kept as `manifest.json.damaged`, and a new one is made from the files. The
driver journals both as `checkpoint.damaged`. A manifest that cannot be read at all is an error of the user's to fix.

Ranks that train together share a checkpoint; ranks of an `average` stage restart alone and have their own.
A merge starts a new round; checkpoints of older rounds are not used.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

from longboat.runtime import atomic_file, run_layout, tensors
from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import asdict, dataclass, replace
from longboat.runtime.plan import Stage, build
from longboat.runtime.shapes import SHAPES

KEEP = 2
READERS = 8
"""Parts that are verified at the same time."""


@dataclass(frozen=True)
class SavedPart:
    name: str
    bytes: int
    crc32: str
    """Empty if it could not be read; then the part is damaged."""


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
    parts: Tuple[SavedPart, ...]
    damage: str = ""
    """Why no generation resumes from it; empty if it is not known to be damaged."""

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


@dataclass(frozen=True)
class DamagedFile:
    """A checkpoint or manifest that was found to be damaged."""

    path: str
    reason: str
    step: Optional[int] = None
    """None: the manifest."""


class Checkpoints:
    """Complete checkpoints of one stage."""

    def __init__(self, run_dir: str, stage: Stage, inherited: int = 0) -> None:
        """inherited: parts of generations up to this one may have been reported only to an earlier driver."""
        self._run_dir, self._stage = run_dir, stage.name
        self.per_rank = SHAPES[stage.shape].own_checkpoints
        self._inherited = inherited
        self._directory = run_layout.checkpoints_of(run_dir, stage.name)
        self._file = os.path.join(run_dir, run_layout.manifest(stage.name))
        self._parts: Dict[Tuple[str, int, int], Dict[int, SavedPart]] = {}
        self._verified: Dict[str, Tuple[int, int]] = {}
        """Path of a checkpoint -> the last incarnation that it was verified for."""
        self.damaged: List[DamagedFile] = []
        """Found since the driver last looked."""
        self.complete: List[CompleteCheckpoint] = self._read()

    def tidy(self, generation: int, owners: Iterable[str]) -> None:
        """Remove the empty directories of a generation that wrote no checkpoint."""
        for owner in (*owners, ""):
            _remove_empty(run_layout.checkpoints(self._run_dir, self._stage, generation, owner))

    def owner(self, role: str, rank: int) -> str:
        return f"{role}-{rank}" if self.per_rank else ""

    def part(
        self, role: str, rank: int, generation: int, round_: int, record: Mapping[str, Any]
    ) -> Optional[CompleteCheckpoint]:
        """Record a part; returns the checkpoint if this part completes it and it is the newest.
        Raises OSError if it cannot be recorded: then the checkpoint does not exist."""
        owner, step, of = self.owner(role, rank), int(record["step"]), int(record["of"])
        path, name = os.path.split(str(record["path"]))
        part = SavedPart(name, int(record["bytes"]), str(record["crc32"]))
        directory = os.path.join(self._run_dir, path)
        known = next((c for c in self.complete if c.path == path), None)
        if known is not None and not known.damage:
            self._rewritten(known, part)
            return None
        if (owner, generation, step) not in self._parts:
            self._parts[owner, generation, step] = (
                _parts_on_disk(directory, of) if generation <= self._inherited else {}
            )
        parts = self._parts[owner, generation, step]
        parts[int(record["part"])] = part
        if len(parts) < of:
            return None
        newest = self.newest(owner, round_)
        if newest is not None and newest.step >= step:
            _remove_parts(directory)
            return None
        checkpoint = CompleteCheckpoint(
            owner, step, generation, round_, path, tuple(parts[number] for number in sorted(parts))
        )
        others = [c for c in self.complete if c is not known]
        intact = sorted((c for c in [*others, checkpoint] if c.owner == owner and not c.damage), key=_age)
        oldest = intact[-max(int(record.get("keep", KEEP)), 1) :][0]
        old = [c for c in others if c.owner == owner and _age(c) < _age(oldest)]
        self._write([c for c in [*others, checkpoint] if c not in old])
        for key in [k for k in self._parts if k[0] == owner and k[2] <= step]:
            del self._parts[key]
        for each in old:
            _remove_parts(os.path.join(self._run_dir, each.path))
        return checkpoint

    def newest(self, owner: str, round_: int) -> Optional[CompleteCheckpoint]:
        mine = [c for c in self.complete if c.owner == owner and c.round == round_ and not c.damage]
        return max(mine, key=_age) if mine else None

    def resume(self, role: str, rank: int, round_: int, incarnation: Tuple[int, int]) -> Tuple[str, int]:
        """(directory, step) of the newest intact checkpoint for a rank; ("", -1) if there is none. The directory is
        relative to the run directory, which may differ on an agent. A checkpoint is verified once for each
        incarnation; those that are damaged are added to `damaged`."""
        owner = self.owner(role, rank)
        while True:
            checkpoint = self.newest(owner, round_)
            if checkpoint is None:
                return "", -1
            if self._verified.get(checkpoint.path) != incarnation:
                damage = _damage(os.path.join(self._run_dir, checkpoint.path), checkpoint.parts)
                if damage:
                    self._set_damaged(checkpoint, damage)
                    continue
                self._verified[checkpoint.path] = incarnation
            return checkpoint.path, checkpoint.step

    def sweep(self, generation: int) -> None:
        """Remove incomplete checkpoints of dead generations: they will never be completed. Other files stay."""
        kept = {c.path for c in self.complete}
        for number, _, path in self._steps():
            if number < generation and path not in kept:
                _remove_parts(os.path.join(self._run_dir, path))
        for name in _names(self._directory):
            number = _number(name, "generation-")
            if 0 <= number < generation:
                for owner in _names(os.path.join(self._directory, name)) if self.per_rank else []:
                    _remove_empty(os.path.join(self._directory, name, owner))
                _remove_empty(os.path.join(self._directory, name))

    def _steps(self) -> Iterator[Tuple[int, str, str]]:
        """(generation, owner, path relative to the run directory) of each step on disk, complete or not."""
        for name in _names(self._directory):
            generation = _number(name, "generation-")
            for owner in _names(os.path.join(self._directory, name)) if self.per_rank and generation >= 0 else [""]:
                directory = os.path.join(self._directory, name, owner).rstrip("/")
                for step in _names(directory) if generation >= 0 else []:
                    if _number(step, "step-") >= 0:
                        yield generation, owner, os.path.relpath(os.path.join(directory, step), self._run_dir)

    def _rewritten(self, known: CompleteCheckpoint, part: SavedPart) -> None:
        """Update a part of a step that was saved again in the same place."""
        parts = tuple(part if each.name == part.name else each for each in known.parts)
        self._verified.pop(known.path, None)
        if parts != known.parts:
            self._write([replace(c, parts=parts) if c is known else c for c in self.complete])

    def _set_damaged(self, checkpoint: CompleteCheckpoint, damage: str) -> None:
        self.damaged.append(DamagedFile(checkpoint.path, damage, checkpoint.step))
        self.complete = [replace(c, damage=damage) if c is checkpoint else c for c in self.complete]
        with contextlib.suppress(OSError):  # the next driver finds out by itself
            self._write(self.complete)

    def _read(self) -> List[CompleteCheckpoint]:
        """The manifest, or what the files say if it is missing or damaged. Damaged checkpoints get another chance."""
        try:
            manifest = read_manifest(self._file)
            return self._rebuilt() if manifest is None else [replace(c, damage="") for c in manifest]
        except ValueError as error:
            with _unreadable(self._file):
                os.replace(self._file, self._file + ".damaged")
            reason = f"{error}; kept as manifest.json.damaged, and rebuilt from the files"
            self.damaged.append(DamagedFile(run_layout.manifest(self._stage), reason))
            return self._rebuilt()

    def _rebuilt(self) -> List[CompleteCheckpoint]:
        """Checkpoints of which all parts are on disk."""
        complete = []
        for generation, owner, path in self._steps():
            directory = os.path.join(self._run_dir, path)
            for of in {run_layout.part_numbers(name)[1] for name in _names(directory)} - {0}:
                parts = _parts_on_disk(directory, of)
                if len(parts) == of:
                    step, found = _number(os.path.basename(path), "step-"), tuple(parts[n] for n in sorted(parts))
                    round_ = _round(os.path.join(directory, found[0].name))
                    complete.append(CompleteCheckpoint(owner, step, generation, round_, path, found))
        return complete

    def _write(self, complete: List[CompleteCheckpoint]) -> None:
        os.makedirs(self._directory, exist_ok=True)
        items = [asdict(c) for c in complete]
        text = json.dumps({"complete": items, "crc32": _checksum(items)}, indent=2)
        atomic_file.write(self._file, text, durable=True)
        self.complete = complete


def read_manifest(path: str) -> Optional[List[CompleteCheckpoint]]:
    """The checkpoints in a manifest; None if there is no such file. Raises LongboatError if it cannot be read, and
    ValueError if it is damaged."""
    with _unreadable(path):
        try:
            with open(path, "rb") as file:
                return parse_manifest(file.read())
        except FileNotFoundError:
            return None


def parse_manifest(data: bytes) -> List[CompleteCheckpoint]:
    """The checkpoints in a manifest. Raises ValueError if it is damaged."""
    try:
        manifest = json.loads(data)
        if manifest["crc32"] != _checksum(manifest["complete"]):
            raise ValueError(f"its checksum is {_checksum(manifest['complete'])}, expected {manifest['crc32']}")
        return [build(CompleteCheckpoint, item) for item in manifest["complete"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"unexpected content: {error}") from None


@contextlib.contextmanager
def _unreadable(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LongboatError(
            f"cannot read the list of checkpoints {path}: {error.strerror}",
            f"make it readable (`ls -l {path}` shows its owner and mode), then resume again",
        ) from None


def _checksum(items: List[Dict[str, Any]]) -> str:
    return f"{zlib.crc32(json.dumps(items, sort_keys=True).encode()):08x}"


def _age(checkpoint: CompleteCheckpoint) -> Tuple[int, int]:
    """Sort key. Generations are never counted anew; rounds are, in another attempt."""
    return checkpoint.generation, checkpoint.step


def _damage(directory: str, parts: Tuple[SavedPart, ...]) -> str:
    """What is wrong with the first damaged part; empty if all are as they were written."""

    def check(part: SavedPart) -> str:
        try:
            with open(os.path.join(directory, part.name), "rb") as file:
                damage = tensors.damage(file, part.bytes, part.crc32)
        except OSError as error:
            damage = str(error.strerror)
        return damage and f"{part.name}: {damage}"

    if len(parts) == 1:
        return check(parts[0])
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(READERS) as pool:
        return next(filter(None, pool.map(check, parts)), "")


def _parts_on_disk(directory: str, of: int) -> Dict[int, SavedPart]:
    """Parts of a checkpoint on disk; a part gets its final name only when it is complete."""
    parts = {}
    for name in _names(directory):
        number, count = run_layout.part_numbers(name)
        if count == of:
            path, checksum = os.path.join(directory, name), ""
            with contextlib.suppress(OSError, ValueError):
                checksum = tensors.metadata(path).get(tensors.CHECKSUM, "")
            with contextlib.suppress(OSError):
                parts[number] = SavedPart(name, os.path.getsize(path), checksum)
    return parts


def _round(path: str) -> int:
    """The round in which a part was written."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads(tensors.metadata(path)["longboat"])["round"])
    return 1


def _number(name: str, prefix: str) -> int:
    """The number after the prefix; -1 if the name has another form."""
    rest = name[len(prefix) :]
    return int(rest) if name.startswith(prefix) and rest.isdigit() else -1


def _names(directory: str) -> List[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _remove_parts(directory: str) -> None:
    """Remove a step's parts, finished or not, and its directory; files of others stay."""
    for name in _names(directory):
        if run_layout.part_numbers(name.lstrip(".").partition(".safetensors")[0] + ".safetensors")[1]:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(directory, name))
    _remove_empty(directory)


def _remove_empty(directory: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(directory)
