"""The real TensorBoard on a run in a cluster, while it trains: nothing of it is needed there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.parse
import urllib.request
from typing import Any

import pytest

from tests.cluster import addons, places
from tests.cluster.cluster import Cluster
from tests.e2e.jobs import PYTHON, single
from tests.e2e.place import LONGBOAT, Place

pytestmark = pytest.mark.slow

TRAIN = """
import os, time, longboat
from longboat import tensorboard
own = tensorboard.Writer(os.path.join(os.environ["LONGBOAT_OUTPUT_DIR"], "mine"))
step = 0
while not longboat.stopping():
    step += 1
    own.histogram("weights", [1.0, 2.0], step)
    longboat.report(step=step, loss=1 / step)
    time.sleep(1)
"""


BOARD = """
name: one
image: {PYTHON}
board: {{image: {image}, port: 5002, expose: NodePort}}
run: python3 train.py
"""


def ask(url: str, what: str, **query: str) -> Any:
    with urllib.request.urlopen(f"{url}data/plugin/{what}?{urllib.parse.urlencode(query)}", timeout=120) as answer:
        return json.load(answer)


def test_curves_and_histograms_of_a_run_in_a_cluster_are_shown_while_it_trains(place: Place) -> None:
    job = place.job(single("python3 train.py"))
    (job / "train.py").write_text(TRAIN)
    run = place.start(job)
    place.until(lambda: place.steps(run) > 1)
    command = [*LONGBOAT, "board", run, "--port", "0", "--on", "kubernetes", "-n", place.namespace]
    environ = {**os.environ, "LONGBOAT_HOME": str(place.home)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as board:
        try:
            assert board.stdout is not None
            url = board.stdout.readline().strip()
            place.until(lambda: "loss" in ask(url, "scalars/tags").get("main/worker-0", {}))
            place.until(lambda: "main/output/mine" in ask(url, "histograms/tags"))
            told = {"run": "main/output/mine", "tag": "weights"}
            seen = len(ask(url, "histograms/histograms", **told))
            place.until(lambda: len(ask(url, "histograms/histograms", **told)) > seen)
        finally:
            board.send_signal(signal.SIGINT)
            assert board.wait(timeout=120) == 130
    assert place.events(run)[-1]["ev"] != "run.ended", "the viewing ended, not the run"
    place.longboat("stop", run, "--now", "--on", "kubernetes", "-n", place.namespace)


def test_a_board_in_the_cluster_is_reached_from_outside_if_the_job_exposes_it(place: Place) -> None:
    if not os.environ["KUBECONFIG"].startswith(str(places.home())):
        pytest.skip("KUBECONFIG names another cluster, which has no image with TensorBoard")
    image = addons.image(Cluster("test", print), "board", print)
    job = place.job(BOARD.format(PYTHON=PYTHON, image=image))
    (job / "train.py").write_text(TRAIN)
    there = ("--on", "kubernetes", "-n", place.namespace)
    said = place.longboat("run", job, "--detach", *there)
    assert "warning: board: TensorBoard has no login: anyone who can reach its NodePort" in said
    run = next(line for line in said.splitlines() if line.startswith("one-")).split()[0]
    url = place.longboat("url", run, "--board", "--wait", *there).split()[-1] + "/"

    def shown() -> bool:
        try:
            curves, own = ask(url, "scalars/tags"), ask(url, "histograms/tags")
        except OSError:
            return False  # its pod is not ready yet
        return "loss" in curves.get("main/worker-0", {}) and "main/output/mine" in own

    place.until(shown)
    place.longboat("rm", "--force", run)
    place.until(lambda: not place.cluster.left(run))
