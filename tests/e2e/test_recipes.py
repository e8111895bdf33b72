"""Recipes run in a cluster as they are: only the image is told, because pods here reach no package index."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.cluster import addons, places
from tests.cluster.cluster import Cluster
from tests.e2e.place import Place
from tests.recipes.test_imdb import write_reviews

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).parents[2] / "recipes"
JAX, SERVE = "longboat.test/jax:1", "longboat.test/serve:1"


@pytest.fixture(scope="module", autouse=True)
def image() -> None:
    """The image with a server's libraries, which is not among those that the cluster starts with."""
    if not os.environ["KUBECONFIG"].startswith(str(places.home())):
        pytest.skip("KUBECONFIG names another cluster, which has not these images")
    addons.image(Cluster("test", print), "serve", print)


def test_qcnn_trains_on_two_pods_predicts_and_keeps_its_weights(place: Place) -> None:
    run = place.run(RECIPES / "qcnn", "--preset", "tiny", "--set", f"IMAGE={JAX}")
    points = [point for event in place.events(run) for point in event.get("points", ()) if "accuracy" in point]
    assert points[-1]["accuracy"] > 0.95
    listed = place.longboat("ls", f"{run}:storage/weights", "--on", "kubernetes", "-n", place.namespace)
    assert "weights.npz" in listed


def test_imdb_goes_from_reviews_to_a_model_that_answers(place: Place) -> None:
    recipe = Path(shutil.copytree(RECIPES / "imdb", place.directory / "imdb"))
    write_reviews(recipe / "reviews.csv", 1000)
    run = place.run(recipe, "--preset", "tiny", "--set", "REVIEWS=reviews.csv", "--set", f"IMAGE={SERVE}")
    events = place.events(run)
    assert [event["passed"] for event in events if event["ev"] == "verdict"] == [True]
    assert [event["prediction"] for event in events if event["ev"] == "stage.ready"]
    assert events[-1]["ev"] == "run.serving"
    place.longboat("stop", run, "--on", "kubernetes", "-n", place.namespace)
