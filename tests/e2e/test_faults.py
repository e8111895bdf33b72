"""Faults of the cluster itself, on the repo's own: a node whose cable is pulled, an API server that is away."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest

from longboat.runtime.kube_client import names
from tests.cluster.apart import cluster_apart
from tests.e2e import jobs
from tests.e2e.breaking import OURS, cluster
from tests.e2e.place import Place, lives

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not OURS, reason="this cluster's nodes are not ours to break")]

STEPS = 60


@pytest.fixture(scope="module")
def kubeconfig() -> Iterator[None]:
    """These tests run on a cluster apart, so that others can run meanwhile."""
    with cluster_apart("faults") as own, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(own.places.kubeconfig))
        yield


@pytest.fixture
def mended() -> Iterator[list[str]]:
    """Commands that mend what a test breaks, whatever becomes of it."""
    commands: list[str] = []
    yield commands
    for command in commands:
        cluster(*command.split())


def test_a_lost_node_costs_its_lease_and_no_result(place: Place, mended: list[str]) -> None:
    run = place.start(place.job(jobs.gang(STEPS, 0.2, undisturbed=2), "gang_sgd.py"))
    place.until(lambda: place.steps(run) > 12)
    home = place.cluster.api.get("Pod", names.driver_pod(run))["spec"]["nodeName"]
    before = place.pods(run)
    seat, lost = next((seat, pod) for seat, pod in before.items() if pod["spec"]["nodeName"] != home)
    node = str(lost["spec"]["nodeName"])
    mended.append(f"net-heal {node.removeprefix('node')}")
    cluster("net-cut", node.removeprefix("node"))
    cut = time.time()
    last = place.ended(run)
    assert last["state"] == "succeeded"
    events = place.events(run)
    again = [e for e in events if e["ev"] == "gen.started"]
    assert [e["gen"] for e in again] == [1, 2]
    fall = next(e for e in events if e["ev"] == "gen.ended")
    assert fall["cause"]["kind"] == "node_lost"
    print(f"{seat} on {node}: from the cut to training again {again[1]['t'] - cut:.1f} s")
    assert again[1]["t"] - cut > names.LEASE, "nothing may start while the cut-off rank may still run"
    plain = place.run(place.job(jobs.gang(STEPS, 0.0), "gang_sgd.py"))
    assert place.file(run, "output/train/weights.hex") == place.file(plain, "output/train/weights.hex")


def test_an_api_server_that_is_away_for_twenty_seconds_is_not_missed(place: Place, mended: list[str]) -> None:
    run = place.start(place.job(jobs.gang(STEPS * 4, 0.1), "gang_sgd.py"))
    place.until(lambda: place.steps(run) > 5)
    mended.append("api-start")
    cluster("api-stop")
    time.sleep(20)  # what is tested is an outage of this length
    cluster("api-start")
    mended.clear()
    place.until(lambda: _there(place))
    assert place.ended(run)["state"] == "succeeded"
    assert [e["gen"] for e in place.events(run) if e["ev"] == "gen.started"] == [1]
    assert lives(place.log(run, 1)) == {"1.0": list(range(STEPS * 4))}


def test_the_node_of_the_driver_is_lost_and_another_driver_goes_on(place: Place, mended: list[str]) -> None:
    # The ranks' lease is over long before there is another driver, wherever they are: that one begins a generation.
    job = place.job(jobs.gang(STEPS, 0.2, undisturbed=2), "gang_sgd.py")
    run = place.start(job, "--driver-lease", "15s")
    place.until(lambda: place.steps(run) > 12)
    node = str(place.cluster.api.get("Pod", names.driver_pod(run))["spec"]["nodeName"])
    mended.append(f"net-heal {node.removeprefix('node')}")
    cluster("net-cut", node.removeprefix("node"))
    cut = time.time()
    there = ("--on", "kubernetes", "-n", place.namespace)
    told = place.longboat("wait", run, *there, timeout=900)
    assert f"{node} does not answer" in told
    events = place.events(run)
    assert events[-1]["state"] == "succeeded"
    starts = [e["t"] for e in events if e["ev"] == "run.started" and e["t"] > cut]
    assert starts, "another driver went on"
    print(f"driver on {node}: from the cut to the next driver {starts[0] - cut:.1f} s")
    assert overlaps(place, run) == [], "no two generations at once"
    plain = place.run(place.job(jobs.gang(STEPS, 0.0), "gang_sgd.py"))
    assert place.file(run, "output/train/weights.hex") == place.file(plain, "output/train/weights.hex")


def test_a_stopped_kubelet_is_not_missed(place: Place, mended: list[str]) -> None:
    run = place.start(place.job(jobs.gang(STEPS * 4, 0.1), "gang_sgd.py"))
    place.until(lambda: place.steps(run) > 5)
    home = place.cluster.api.get("Pod", names.driver_pod(run))["spec"]["nodeName"]
    node = next(str(p["spec"]["nodeName"]) for p in place.pods(run).values() if p["spec"]["nodeName"] != home)
    mended.append(f"kubelet-start {node.removeprefix('node')}")
    cluster("kubelet-stop", node.removeprefix("node"))
    assert place.ended(run)["state"] == "succeeded"
    assert [e["gen"] for e in place.events(run) if e["ev"] == "gen.started"] == [1]
    assert [lives(place.log(run, rank)) for rank in range(3)] == [{"1.0": list(range(STEPS * 4))}] * 3


def overlaps(place: Place, run: str) -> list[str]:
    """Lives that printed a line before the last line of an earlier generation."""
    spans: dict[int, list[float]] = {}
    for rank in range(3):
        for line in place.log(run, rank):
            words = line.split()
            if words[:1] == ["life"]:
                spans.setdefault(int(words[1].split(".")[0]), []).append(float(words[7]))
    pairs = itertools.pairwise(sorted(spans))
    return [f"{one} and {two}" for one, two in pairs if max(spans[one]) >= min(spans[two])]


def _there(place: Place) -> bool:
    from longboat.runtime.errors import LongboatError

    try:
        return place.cluster.runs() is not None
    except LongboatError:
        return False
