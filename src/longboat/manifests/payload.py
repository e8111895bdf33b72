"""What a run carries into a cluster: the zipapp, and the code tree as compressed data in ConfigMaps.

A ConfigMap holds at most 1,048,576 bytes, so the tree is cut into a stated number of parts. A tree
that is too large for that is refused with the names of what makes it large: data belongs into
storage, and what is built into an image.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from dataclasses import dataclass, replace
from hashlib import sha256

from longboat import zipapp
from longboat.runs import formatting
from longboat.runtime.errors import LongboatError
from longboat.runtime.plan import Plan
from longboat.spec.code_tree import IGNORE_FILE, code_files

PART = 1_000_000
"""Bytes of the tree in one ConfigMap: below the limit, with room for names."""
PARTS = 16
"""ConfigMaps that one tree may take."""
PRINTS = 300_000
"""Bytes of the root that fingerprints may take; a tree of thousands of files goes without."""


@dataclass(frozen=True)
class Payload:
    archive: bytes
    """The zipapp."""
    parts: tuple[bytes, ...] = ()
    """The code tree, a compressed tar, cut up."""
    sha256: str = ""
    """Of all parts together."""
    files: int = 0
    edition: str = ""
    """Told apart by their names: ConfigMaps that hold what a run goes on with. Empty: what it began with."""

    fingerprints: str = ""
    """What each stage's result depends on, for a run that goes on; empty: not known."""

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))


def load(plan: Plan, edition: bool = False) -> Payload:
    """All that a plan's pods need from here. edition: for a run that goes on."""
    from longboat.spec import fingerprint

    packed = pack(plan.code, zipapp.build(whole(plan)), edition)
    told = fingerprint.to_json(fingerprint.fingerprints(plan))
    return replace(packed, fingerprints=told if len(told) <= PRINTS else "")


def whole(plan: Plan) -> bool:
    """Whether pods of the plan run more of Longboat than what ships everywhere: a server or a load test."""
    return any(stage.kind == "bench" or stage.serve is not None and not stage.serve.image for stage in plan.stages)


def pack(code: str, archive: bytes, edition: bool = False) -> Payload:
    """Reads the code tree; LongboatError when it is too large to travel like this. Without one, the image has it.
    edition: for a run that goes on."""
    if not code:
        return Payload(archive, edition=sha256(archive).hexdigest()[:8] if edition else "")
    sizes: dict[str, int] = {}
    target = io.BytesIO()
    # The clock and whoever packs must not show: the same tree is the same bytes.
    with gzip.GzipFile("", "wb", 6, target, mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for name in code_files(code):
            path = os.path.join(code, name)
            sizes[name] = os.path.getsize(path)
            if sum(sizes.values()) > 20 * PARTS * PART:
                raise _too_large(code, sizes, 0)
            entry = tarfile.TarInfo(name)
            entry.size = sizes[name]
            entry.mode = 0o755 if os.access(path, os.X_OK) else 0o644
            with open(path, "rb") as file:
                tar.addfile(entry, file)
    data = target.getvalue()
    if len(data) > PARTS * PART:
        raise _too_large(code, sizes, len(data))
    parts = tuple(data[begin : begin + PART] for begin in range(0, len(data), PART))
    name = sha256(archive + data).hexdigest()[:8] if edition else ""
    return Payload(archive, parts, sha256(data).hexdigest(), len(sizes), name)


def _too_large(code: str, sizes: dict[str, int], packed: int) -> LongboatError:
    largest = sorted(sizes, key=lambda name: -sizes[name])[:5]
    listed = ", ".join(f"{name} {formatting.size(sizes[name])}" for name in largest)
    size = f"{formatting.size(packed)} compressed" if packed else f"more than {formatting.size(sum(sizes.values()))}"
    return LongboatError(
        f"the code tree {code} is {size}; {formatting.size(PARTS * PART)} travel with a run ({PARTS} ConfigMaps). "
        f"Its largest files: {listed}",
        f"leave files out with {IGNORE_FILE}, put data into `storage:`, or build an image with the code in it: "
        "`longboat run --build`",
    )
