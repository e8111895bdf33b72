"""What ranks report of themselves, as gates ask for it: where several tell a metric of the same name, the first rank is
believed.

Ships into strangers' images: standard library only, Python 3.9.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence, Tuple

from windlass.driver.history import metrics
from windlass.gang.words import Seat
from windlass.pipeline import Pipeline


class Metrics:
    def __init__(self, pipeline: Pipeline, before: Mapping[str, Mapping[str, float]]) -> None:
        """before: what earlier parts of the run have told, by stage."""
        self._pipeline = pipeline
        self._speakers: Dict[Tuple[str, str], Seat] = {}
        """Stage and metric -> who is believed."""
        for stage, values in before.items():
            for name, value in values.items():
                pipeline.metric(stage, name, value)

    def take(self, stage: str, seat: Seat, points: Sequence[Mapping[str, Any]]) -> None:
        for point in points:
            for name, value in metrics(point).items():
                speaker = self._speakers.setdefault((stage, name), seat)
                if seat <= speaker:
                    self._speakers[stage, name] = seat
                    self._pipeline.metric(stage, name, value)
