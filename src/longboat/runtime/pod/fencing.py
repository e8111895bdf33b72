"""Fencing of writes to the file server: only the latest incarnation of a seat, in the latest generation of its stage.

An agent that was given up may still live behind a broken network. When the network is back, it has bytes left to
send, but its successor has written to the same paths meanwhile. So an incarnation claims its seat before it looks at
the files, and from then on the file server rejects older ones. The driver starts each incarnation once, and the next
one only when nothing of the earlier ones may run, so the order is certain without any clock.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Dict, Iterator, Mapping, Optional

from longboat.runtime.agent.file_transfer import StaleIncarnation
from longboat.runtime.gang.gang_events import NO_INCARNATION, Incarnation
from longboat.runtime.seat import Seat


class WriteFence:
    """Latest incarnation by seat name, `STAGE/ROLE-RANK`. Thread-safe."""

    def __init__(
        self, generations: Optional[Mapping[str, int]] = None, incarnations: Optional[Mapping[Seat, Incarnation]] = None
    ) -> None:
        """From the journal: the last generation of each stage and the last incarnation of each seat."""
        self._generations: Dict[str, int] = dict(generations or {})
        self._incarnations: Dict[str, Incarnation] = {
            seat.name: incarnation for seat, incarnation in (incarnations or {}).items()
        }
        self._locks: Dict[str, threading.Lock] = {}

    def claim(self, name: str, incarnation: Incarnation) -> None:
        """Claim a seat; waits for writes of an older incarnation. Raises StaleIncarnation if there is a newer one."""
        with self._locked(name), self._locked(_stage(name)):
            self._check(name, incarnation)
            self._incarnations[name], self._generations[_stage(name)] = incarnation, incarnation[0]

    @contextlib.contextmanager
    def writing(self, name: str, incarnation: Incarnation, shared: bool) -> Iterator[None]:
        """Guard a write: no claim of the seat happens meanwhile; shared: nor any of the stage."""
        with self._locked(_stage(name) if shared else name):
            self._check(name, incarnation)
            yield

    def _check(self, name: str, incarnation: Incarnation) -> None:
        if incarnation < self._incarnations.get(name, NO_INCARNATION) or incarnation[0] < self._generations.get(
            _stage(name), 0
        ):
            raise StaleIncarnation(
                f"incarnation {incarnation[0]}.{incarnation[1]} of {name} was replaced by a later one"
            )

    def _locked(self, key: str) -> threading.Lock:
        return self._locks.setdefault(key, threading.Lock())


def _stage(name: str) -> str:
    return name.rpartition("/")[0]
