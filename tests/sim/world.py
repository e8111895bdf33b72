"""The simulated world's clock, chance and memory: one queue of events, one seeded generator, one count of faults.

Everything that happens in a simulation is an entry of the queue, and every choice comes from the generator: the same
seed gives the same history, to the last message.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from typing import Any


class Violation(Exception):
    """The gang broke a promise. `promise` is the letter of the invariant."""

    def __init__(self, promise: str, text: str) -> None:
        super().__init__(promise, text)
        self.promise, self.text = promise, text

    def __str__(self) -> str:
        return f"({self.promise}) {self.text}"


class World:
    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        self.rng = random.Random(seed)
        self.chance = self.rng.random
        self.now = 0.0
        self.steps = 0
        self.faults: Counter[str] = Counter()
        self.calm = False
        """No more faults: from now on all must come to a good end."""
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._entries = 0
        self._trace = trace

    def after(self, delay: float, what: Callable[..., None], *args: Any) -> None:
        self._entries += 1
        heapq.heappush(self._queue, (self.now + delay, self._entries, what, args))

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.chance()

    def happens(self, probability: float) -> bool:
        """Whether something bad happens; never once it is calm."""
        return not self.calm and self.chance() < probability

    def fault(self, kind: str, text: str = "") -> None:
        self.faults[kind] += 1
        if self._trace is not None:
            self.say(f"fault: {kind} {text}")

    @property
    def tracing(self) -> bool:
        return self._trace is not None

    def say(self, text: str) -> None:
        if self._trace is not None:
            self._trace(f"{self.now:9.3f}  {text}")

    def run(self, until: float, done: Callable[[], bool]) -> None:
        """Lets time pass until `done`, or until the given time."""
        queue = self._queue
        pop = heapq.heappop
        while queue and queue[0][0] <= until and not done():
            self.now, _, what, args = pop(queue)
            self.steps += 1
            what(*args)
        if not done():
            self.now = max(self.now, until)
