"""A recipe runs in a cluster as it is: only the image is told, because pods here reach no package index."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.place import Place

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).parents[2] / "recipes"


def test_qcnn_trains_on_two_pods_predicts_and_keeps_its_weights(place: Place) -> None:
    run = place.run(RECIPES / "qcnn", "--preset", "tiny", "--set", "IMAGE=windlass.test/jax:1")
    points = [point for event in place.events(run) for point in event.get("points", ()) if "accuracy" in point]
    assert points[-1]["accuracy"] > 0.95
    listed = place.windlass("ls", f"{run}:storage/weights", "--on", "kubernetes", "-n", place.namespace)
    assert "weights.npz" in listed
