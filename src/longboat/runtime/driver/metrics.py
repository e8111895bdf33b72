"""Metrics that ranks report, as gates read them. If several ranks report the same metric, the lowest rank counts."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence, Tuple

from longboat.runtime.seat import Seat


class Metrics:
    """The newest value of each stage's metrics."""

    def __init__(self) -> None:
        self.values: Dict[str, Dict[str, float]] = {}
        """Stage -> metric -> the newest value."""
        self._sources: Dict[Tuple[str, str], Seat] = {}
        """Stage and metric -> the rank whose value counts."""

    def take(self, seat: Seat, points: Sequence[Mapping[str, Any]]) -> Dict[str, float]:
        """Record what a rank reported; returns the values that count."""
        counts = {}
        for point in points:
            for name, value in numbers(point).items():
                if seat <= self._sources.setdefault((seat.stage, name), seat):
                    self._sources[seat.stage, name] = seat
                    self.values.setdefault(seat.stage, {})[name] = counts[name] = value
        return counts

    def forget(self, stages: Sequence[str]) -> None:
        """Forget these stages in a resumed run. Values of other stages stay until new ones are reported, by any rank:
        the job may have changed."""
        self.values = {stage: metrics for stage, metrics in self.values.items() if stage not in stages}
        self._sources.clear()


def numbers(point: Mapping[str, Any]) -> Dict[str, float]:
    """The metrics of a reported point, as numbers."""
    metrics = {}
    for name, value in point.items():
        if name not in ("t", "step", "total") and isinstance(value, (int, float, str)):
            try:
                metrics[name] = float(value)
            except ValueError:
                continue
    return metrics
