"""Which agents may still write into the depot: at each seat the newest life, in each stage the newest generation.

An agent that was given up may live on behind a network that is cut. When that is mended, it has bytes left to send, and
its successor has written in the same places meanwhile. So a life claims its seat before it looks at what is there, and
from then on nothing is taken from an older one. The driver gives every life once and the next one only when nothing
may run of those before, which makes the order certain: no clock is asked, and no time passes between look and write.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Dict, Iterator, Mapping, Optional

from longboat.runtime.agent.file_transfer import StaleIncarnation
from longboat.runtime.driver.agent_links import Seat, name_of
from longboat.runtime.gang.gang_events import NO_INCARNATION, Incarnation


class WriteFence:
    """By name of the seat, `STAGE/ROLE-RANK`. For many threads."""

    def __init__(
        self, generations: Optional[Mapping[str, int]] = None, incarnations: Optional[Mapping[Seat, Incarnation]] = None
    ) -> None:
        """What the journal knows: the last generation of each stage, the last life of each seat."""
        self._generations: Dict[str, int] = dict(generations or {})
        self._lives: Dict[str, Incarnation] = {
            name_of(seat): incarnation for seat, incarnation in (incarnations or {}).items()
        }
        self._locks: Dict[str, threading.Lock] = {}

    def claim(self, name: str, incarnation: Incarnation) -> None:
        """Waits for what an older life is writing; Stale when there is a newer one."""
        with self._locked(name), self._locked(_stage(name)):
            self._check(name, incarnation)
            self._lives[name], self._generations[_stage(name)] = incarnation, incarnation[0]

    @contextlib.contextmanager
    def writing(self, name: str, incarnation: Incarnation, shared: bool) -> Iterator[None]:
        """Around a write, with which no claim of the seat coincides; shared: nor any of the stage."""
        with self._locked(_stage(name) if shared else name):
            self._check(name, incarnation)
            yield

    def _check(self, name: str, incarnation: Incarnation) -> None:
        if incarnation < self._lives.get(name, NO_INCARNATION) or incarnation[0] < self._generations.get(
            _stage(name), 0
        ):
            raise StaleIncarnation(f"{name} has a later life than {incarnation[0]}.{incarnation[1]}")

    def _locked(self, what: str) -> threading.Lock:
        return self._locks.setdefault(what, threading.Lock())


def _stage(name: str) -> str:
    return name.rpartition("/")[0]
