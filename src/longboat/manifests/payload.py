"""Payload of a run in a cluster: the zipapp, and the code directory as ConfigMaps.

A ConfigMap holds at most 1,048,576 bytes, so the compressed code is split into up to PARTS parts. Larger code is an
error that names the largest files: data belongs in storage, large code in an image.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from hashlib import sha256

from longboat import zipapp
from longboat.runs import formatting
from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import dataclass, replace
from longboat.runtime.plan import Plan
from longboat.spec.code_tree import IGNORE_FILE, code_files

PART = 1_000_000
"""Bytes of code in one ConfigMap: below the limit, with room for names."""
PARTS = 16
"""Maximum number of ConfigMaps for the code."""
PRINTS = 300_000
"""Maximum bytes of fingerprints in the root; with thousands of files they are left out."""


@dataclass(frozen=True)
class Payload:
    archive: bytes
    """The zipapp."""
    parts: tuple[bytes, ...] = ()
    """Parts of the code directory as a compressed tar."""
    sha256: str = ""
    """Digest of all parts together."""
    files: int = 0
    edition: str = ""
    """Suffix in the names of the ConfigMaps of a resumed run; empty for the first submission."""

    fingerprints: str = ""
    """Fingerprints of the stages, for a resumed run; empty: unknown."""

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))


def load(plan: Plan, edition: bool = False) -> Payload:
    """The payload of a plan. edition: for a resumed run."""
    from longboat.spec import fingerprint

    packed = pack(plan.code, zipapp.build(whole(plan)), edition)
    fingerprints = fingerprint.to_json(fingerprint.fingerprints(plan))
    return replace(packed, fingerprints=fingerprints if len(fingerprints) <= PRINTS else "")


def whole(plan: Plan) -> bool:
    """Whether pods of the plan need all of Longboat: for a server or a load test."""
    return any(stage.kind == "bench" or stage.serve is not None and not stage.serve.image for stage in plan.stages)


def pack(code: str, archive: bytes, edition: bool = False) -> Payload:
    """The payload for a code directory; without one, the image has the code. LongboatError if it is too large.

    edition: for a resumed run."""
    if not code:
        return Payload(archive, edition=sha256(archive).hexdigest()[:8] if edition else "")
    sizes: dict[str, int] = {}
    target = io.BytesIO()
    # Reproducible: no times and no owners.
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
        f"the code directory {code} is {size}; the limit is {formatting.size(PARTS * PART)} ({PARTS} ConfigMaps). "
        f"Its largest files: {listed}",
        f"exclude files with {IGNORE_FILE}, put data into `storage:`, or build an image with the code: "
        "`longboat run --build`",
    )
