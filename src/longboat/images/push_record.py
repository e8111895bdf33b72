"""Records the images pushed from this machine, in `images/pushed/` of the home directory.

One small file per image, so that `longboat rm --images` can remove them without listing a registry.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator

from longboat.runtime import atomic_file
from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import asdict, dataclass


@dataclass(frozen=True)
class PushedImage:
    reference: str
    """REGISTRY/NAME:TAG."""
    digest: str
    job: str
    size: int
    when: float
    insecure: bool = False

    @property
    def exact(self) -> str:
        """The image by digest, as runs name it."""
        return f"{self.name}@{self.digest}"

    @property
    def name(self) -> str:
        head, slash, last = self.reference.rpartition("/")
        return head + slash + last.partition(":")[0]


def place(home: str) -> str:
    """Directory of the image caches. Everything but `pushed` may be deleted at any time."""
    return os.path.join(home, "images")


def keep(home: str, reference: str, digest: str, job: str, size: int, insecure: bool) -> None:
    made = PushedImage(reference, digest, job, size, time.time(), insecure)
    path = _path(home, made)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        atomic_file.write(path, json.dumps(asdict(made)))
    except OSError as error:
        raise LongboatError(
            f"cannot write {path}: {error.strerror}", "set LONGBOAT_HOME to another directory"
        ) from None


def pushed(home: str) -> list[PushedImage]:
    """Pushed images, newest first."""
    return sorted(_read(home), key=lambda each: -each.when)


def forget(home: str, made: PushedImage) -> None:
    try:
        os.unlink(_path(home, made))
    except FileNotFoundError:
        pass


def _read(home: str) -> Iterator[PushedImage]:
    directory = os.path.join(place(home), "pushed")
    for name in os.listdir(directory) if os.path.isdir(directory) else ():
        if name.endswith(".json"):
            try:
                with open(os.path.join(directory, name), encoding="utf-8") as file:
                    yield PushedImage(**json.load(file))
            except (OSError, ValueError, TypeError):
                continue


def _path(home: str, made: PushedImage) -> str:
    key = hashlib.sha256(f"{made.reference}@{made.digest}".encode()).hexdigest()[:16]
    return os.path.join(place(home), "pushed", f"{key}.json")
