"""The figures of a load test, as a value, and the arithmetic behind them. No clock, no network.

A percentile is the smallest measured latency that at least so many per cent of the requests did
not exceed (nearest rank): a latency that was really measured, nothing interpolated.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

PERCENTILES = (("p50", 50.0), ("p95", 95.0), ("p99", 99.0), ("p99_9", 99.9))


@dataclass(frozen=True)
class Latency:
    """Seconds."""

    mean: float
    minimum: float
    p50: float
    p95: float
    p99: float
    p99_9: float
    maximum: float


@dataclass(frozen=True)
class Bar:
    """Requests that took `low` or more and less than `high` seconds."""

    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Iteration:
    number: int
    """From 1; the warm-up has the first numbers."""
    seconds: float
    rows: int
    correct: int | None
    """None where the data has no labels."""
    error: str = ""

    @property
    def accuracy(self) -> float | None:
        return None if self.correct is None or not self.rows else self.correct / self.rows


@dataclass(frozen=True)
class RequestFailure:
    kind: str
    count: int
    said: str
    """The server's words the first time."""


@dataclass(frozen=True)
class LoadReport:
    url: str
    protocol: str
    model: str
    version: str
    data: str
    data_rows: int
    batch_size: int
    warm_up: int
    concurrency: int
    rate: float
    """Requests a second that were asked for; 0: as fast as answers came (a closed loop)."""
    seconds: float
    """From the first measured request to the last answer."""
    requests: int
    succeeded: int
    examples: int
    correct: int | None
    labelled: int
    """Rows whose prediction could be held against a label."""
    latency: Latency | None
    """Open loop: from the moment a request was due. Without failures, but with those that ran out of time."""
    service: Latency | None
    """Open loop only: from the moment it was sent."""
    histogram: tuple[Bar, ...]
    failures: tuple[RequestFailure, ...]
    iterations: tuple[Iteration, ...]
    """The first ten thousand."""
    notes: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def accuracy(self) -> float | None:
        return None if self.correct is None or not self.labelled else self.correct / self.labelled

    @property
    def examples_per_second(self) -> float:
        return self.examples / self.seconds if self.seconds > 0 else 0.0

    @property
    def requests_per_second(self) -> float:
        return self.succeeded / self.seconds if self.seconds > 0 else 0.0

    def document(self) -> dict[str, Any]:
        """The report as JSON has it; times in seconds."""
        found = asdict(self)
        found["iterations"] = [{**asdict(each), "accuracy": each.accuracy} for each in self.iterations]
        found |= {
            "accuracy": self.accuracy,
            "examples_per_second": self.examples_per_second,
            "requests_per_second": self.requests_per_second,
        }
        return found


def percentile(ordered: Sequence[float], per_cent: float) -> float:
    """Nearest rank, of values in ascending order."""
    rank = math.ceil(round(per_cent * len(ordered) / 100, 9))
    return ordered[max(rank, 1) - 1]


def latency(values: Sequence[float]) -> Latency | None:
    if not values:
        return None
    ordered = sorted(values)
    points = {name: percentile(ordered, per_cent) for name, per_cent in PERCENTILES}
    return Latency(math.fsum(ordered) / len(ordered), ordered[0], maximum=ordered[-1], **points)


def histogram(values: Sequence[float], bars: int = 16) -> tuple[Bar, ...]:
    """Bars whose edges are 1, 1.5, 2, 3, 5, 7 times a power of ten, or evenly thinned where those are too many."""
    if not values:
        return ()
    low, high = max(min(values), 1e-6), max(values)
    edges = [_below(low)]
    while edges[-1] <= high:
        edges.append(_above(edges[-1]))
    while len(edges) - 1 > bars:
        edges = edges[::2] if len(edges) % 2 else [*edges[::2], edges[-1]]
    counts = [0] * (len(edges) - 1)
    for value in values:
        counts[bisect_right(edges, value, 1, len(counts)) - 1] += 1
    return tuple(Bar(edges[i], edges[i + 1], count) for i, count in enumerate(counts))


_STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0)


def _below(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return max(step * power for step in _STEPS if step * power <= value * (1 + 1e-12))


def _above(edge: float) -> float:
    power = 10.0 ** math.floor(math.log10(edge) + 1e-9)
    return min(step * power for step in _STEPS if step * power > edge * (1 + 1e-9))
