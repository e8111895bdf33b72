"""Report of a load test: its numbers and their arithmetic. No clock, no network.

A percentile is the nearest rank: the smallest measured latency that at least that percentage of requests did not
exceed. Nothing is interpolated.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from longboat.runtime.light_dataclasses import asdict, dataclass

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
    """Number from 1, including the warm-up."""
    seconds: float
    rows: int
    correct: int | None
    """None if the data has no labels."""
    error: str = ""

    @property
    def accuracy(self) -> float | None:
        return None if self.correct is None or not self.rows else self.correct / self.rows


@dataclass(frozen=True)
class RequestFailure:
    kind: str
    count: int
    message: str
    """The server's message the first time."""


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
    """Target requests per second; 0: closed loop."""
    seconds: float
    """Seconds from the first measured request to the last response."""
    requests: int
    succeeded: int
    examples: int
    correct: int | None
    labelled: int
    """Rows whose prediction was compared with a label."""
    latency: Latency | None
    """Latencies; in an open loop from when a request was due. Without failures, but with timeouts."""
    service: Latency | None
    """Open loop only: latencies from when a request was sent."""
    histogram: tuple[Bar, ...]
    failures: tuple[RequestFailure, ...]
    iterations: tuple[Iteration, ...]
    """The first ten thousand iterations."""
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
        """The report as JSON; times are in seconds."""
        values = asdict(self)
        values["iterations"] = [{**asdict(each), "accuracy": each.accuracy} for each in self.iterations]
        values |= {
            "accuracy": self.accuracy,
            "examples_per_second": self.examples_per_second,
            "requests_per_second": self.requests_per_second,
        }
        return values


def percentile(ordered: Sequence[float], per_cent: float) -> float:
    """The percentile by nearest rank; the values must be sorted."""
    rank = math.ceil(round(per_cent * len(ordered) / 100, 9))
    return ordered[max(rank, 1) - 1]


def latency(values: Sequence[float]) -> Latency | None:
    if not values:
        return None
    ordered = sorted(values)
    points = {name: percentile(ordered, per_cent) for name, per_cent in PERCENTILES}
    return Latency(math.fsum(ordered) / len(ordered), ordered[0], maximum=ordered[-1], **points)


def histogram(values: Sequence[float], bars: int = 16) -> tuple[Bar, ...]:
    """Histogram bars with edges at 1, 1.5, 2, 3, 5, 7 times a power of ten, thinned if there are too many."""
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
