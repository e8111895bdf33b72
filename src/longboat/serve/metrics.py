"""Counters and histograms in Prometheus text format, without a library.

Several processes share one port, and a scraper reaches any of them. Each process writes its numbers into its slot of a
shared memory block, and the one that is scraped adds up all slots. A replacement process continues from the numbers in
its slot, so that counters never decrease.
"""

from __future__ import annotations

import bisect
import json
import mmap
import struct
from collections.abc import Iterable, Mapping

from longboat.runtime.light_dataclasses import dataclass, field

SLOT = 1 << 17
"""Bytes of one process's slot."""
BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds."""
_HEAD = struct.Struct("<QQ")

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class MetricFamily:
    name: str
    kind: str
    help: str


FAMILIES = (
    MetricFamily("longboat_requests_total", "counter", "requests answered, by model, protocol and status"),
    MetricFamily("longboat_request_seconds", "histogram", "from the last byte of a request to its answer"),
    MetricFamily("longboat_batches_total", "counter", "batches computed, by the power of two of their rows"),
    MetricFamily("longboat_rows_total", "counter", "rows computed"),
    MetricFamily("longboat_queue_rows", "gauge", "rows waiting now"),
    MetricFamily("longboat_connections", "gauge", "open HTTP connections"),
    MetricFamily("longboat_model_state", "gauge", "1 for a loaded version, 0 for one that failed to load"),
    MetricFamily("longboat_resident_bytes", "gauge", "memory of the server's processes"),
    MetricFamily("longboat_start_time_seconds", "gauge", "start time of the server"),
)


@dataclass
class Timing:
    """Latency histogram of one kind of request."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect.bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds


@dataclass
class ProcessMetrics:
    """All numbers of one process, by family and labels."""

    counters: dict[tuple[str, Labels], float] = field(default_factory=dict)
    gauges: dict[tuple[str, Labels], float] = field(default_factory=dict)
    timings: dict[Labels, Timing] = field(default_factory=dict)

    def count(self, name: str, labels: Labels, by: float = 1) -> None:
        key = (name, labels)
        self.counters[key] = self.counters.get(key, 0) + by

    def timing(self, labels: Labels) -> Timing:
        timing = self.timings.get(labels)
        if timing is None:
            timing = self.timings[labels] = Timing()
        return timing

    def packed(self) -> bytes:
        document = {
            "counters": [[name, labels, value] for (name, labels), value in self.counters.items()],
            "gauges": [[name, labels, value] for (name, labels), value in self.gauges.items()],
            "timings": [[labels, timing.counts, timing.total] for labels, timing in self.timings.items()],
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def unpacked(cls, content: bytes) -> ProcessMetrics:
        document = json.loads(content)
        return cls(
            {(name, _labels(labels)): value for name, labels, value in document["counters"]},
            {(name, _labels(labels)): value for name, labels, value in document["gauges"]},
            {_labels(labels): Timing(counts, total) for labels, counts, total in document["timings"]},
        )


def _labels(pairs: Iterable[Iterable[str]]) -> Labels:
    return tuple((key, value) for key, value in pairs)


class SharedMetrics:
    """The shared block, created before the processes and inherited by them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._block = mmap.mmap(-1, count * SLOT)

    def write(self, index: int, numbers: ProcessMetrics) -> None:
        content = numbers.packed()
        if len(content) > SLOT - _HEAD.size:
            return  # thousands of models: the previous contents stay readable
        at = index * SLOT
        version, _ = _HEAD.unpack_from(self._block, at)
        _HEAD.pack_into(self._block, at, version + 1, 0)  # odd: being written
        self._block[at + _HEAD.size : at + _HEAD.size + len(content)] = content
        _HEAD.pack_into(self._block, at, version + 2, len(content))

    def read(self, index: int) -> ProcessMetrics:
        at = index * SLOT
        for _ in range(100):
            version, length = _HEAD.unpack_from(self._block, at)
            if not length:
                if version == 0:
                    break
                continue
            content = self._block[at + _HEAD.size : at + _HEAD.size + length]
            if _HEAD.unpack_from(self._block, at) == (version, length):
                try:
                    return ProcessMetrics.unpacked(content)
                except (ValueError, KeyError):
                    continue
        return ProcessMetrics()


def text(all_numbers: Iterable[ProcessMetrics]) -> str:
    """The sum over all processes in Prometheus text format."""
    counters: dict[tuple[str, Labels], float] = {}
    timings: dict[Labels, Timing] = {}
    for numbers in all_numbers:
        for key, value in (*numbers.counters.items(), *numbers.gauges.items()):
            together = max if key[0] in ("longboat_model_state", "longboat_start_time_seconds") else _plus
            counters[key] = together(counters[key], value) if key in counters else value
        for labels, timing in numbers.timings.items():
            merged = timings.setdefault(labels, Timing())
            merged.counts = [a + b for a, b in zip(merged.counts, timing.counts, strict=True)]
            merged.total += timing.total
    lines: list[str] = []
    for family in FAMILIES:
        lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}"]
        if family.kind == "histogram":
            for labels, timing in sorted(timings.items()):
                lines += _histogram(family.name, labels, timing)
        for (name, labels), value in sorted(counters.items()):
            if name == family.name:
                lines.append(f"{name}{_braces(labels)} {value:.17g}")
    return "\n".join(lines) + "\n"


def _plus(first: float, second: float) -> float:
    return first + second


def _histogram(name: str, labels: Labels, timing: Timing) -> list[str]:
    lines, below = [], 0
    for bound, count in zip((*map(str, BUCKETS), "+Inf"), timing.counts, strict=True):
        below += count
        lines.append(f"{name}_bucket{_braces((*labels, ('le', bound)))} {below}")
    return [*lines, f"{name}_sum{_braces(labels)} {timing.total:.17g}", f"{name}_count{_braces(labels)} {below}"]


def _braces(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def resident() -> int:
    """Memory of this process, in bytes."""
    try:
        with open("/proc/self/statm", encoding="utf-8") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return 0


def gauges(numbers: ProcessMetrics, values: Mapping[tuple[str, Labels], float]) -> None:
    numbers.gauges = {**values, ("longboat_resident_bytes", ()): float(resident())}
