"""What ranks report of themselves, as gates ask for it: where several tell a metric of the same name, the first rank is
believed.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence, Tuple

from longboat.runtime.gang.gang_events import Seat


class Metrics:
    def __init__(self) -> None:
        self.values: Dict[str, Dict[str, float]] = {}
        """Stage -> metric -> the newest value."""
        self._speakers: Dict[Tuple[str, str], Seat] = {}
        """Stage and metric -> who is believed."""

    def take(self, stage: str, seat: Seat, points: Sequence[Mapping[str, Any]]) -> Dict[str, float]:
        """Takes in what a rank has told; what of it counts."""
        counts = {}
        for point in points:
            for name, value in numbers(point).items():
                if seat <= self._speakers.setdefault((stage, name), seat):
                    self._speakers[stage, name] = seat
                    self.values.setdefault(stage, {})[name] = counts[name] = value
        return counts

    def forget(self, stages: Sequence[str]) -> None:
        """For a run that somebody lets go on: these stages have said nothing yet. Of the others the values stay until
        somebody tells new ones, and who that will be is open: the job may be another one now."""
        self.values = {stage: told for stage, told in self.values.items() if stage not in stages}
        self._speakers.clear()


def numbers(point: Mapping[str, Any]) -> Dict[str, float]:
    """The metrics of a reported point, as numbers."""
    found = {}
    for name, value in point.items():
        if name not in ("t", "step", "total") and isinstance(value, (int, float, str)):
            try:
                found[name] = float(value)
            except ValueError:
                continue
    return found
