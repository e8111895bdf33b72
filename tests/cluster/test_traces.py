"""A cluster leaves nothing on the machine, however it ends."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cluster.apart import no_other_changes
from tests.cluster.cluster import Cluster
from tests.cluster.places import CHECKOUT, Places
from tests.cluster.traces import Traces, traces

NAME = "traces"
PLACES = Places(NAME)

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "worker"},
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "longboat.test/python:1",
                "command": ["sh", "-c", "trap '' TERM; date > /shared/date; while true; do sleep 1; done"],
                "ports": [{"containerPort": 80, "hostPort": 8080}],
                "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
                "readinessProbe": {"exec": {"command": ["test", "-s", "/shared/date"]}, "periodSeconds": 1},
            }
        ],
        "volumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}],
    },
}
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "shared"},
    "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
}


@pytest.fixture
def before() -> Iterator[Traces]:
    with no_other_changes():
        Cluster(NAME, print).down()
        yield traces(PLACES)
        Cluster(NAME, print).down()


def start() -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.cluster", "--name", NAME, "up"]
    return subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def read_until(process: "subprocess.Popen[str]", phase: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(phase):
            return
    raise AssertionError(f"`up` ended before {phase}")


def test_a_cluster_with_running_pods_goes_without_a_trace(before: Traces) -> None:
    cluster = Cluster(NAME, print)
    cluster.up()
    for manifest in (CLAIM, POD):
        path = cluster.places.root / "manifest.json"
        path.write_text(json.dumps(manifest))
        cluster.kubectl("apply", "-f", str(path))
    cluster.kubectl("wait", "--for=condition=Ready", "pod/worker", "--timeout=300s")
    during = traces(PLACES).beyond(before)
    assert {"links", "groups", "processes"} == during.keys(), (
        "mounts, rules and files stay in the box even while it lives"
    )
    assert cluster.down()
    assert traces(PLACES).beyond(before) == {}
    assert not PLACES.root.exists()


@pytest.mark.parametrize("phase", ["parts", "box", "control plane", "images", "nodes", "dns"])
def test_what_a_killed_start_left_is_removed_by_down(before: Traces, phase: str) -> None:
    process = start()
    read_until(process, phase)
    process.kill()
    process.wait()
    Cluster(NAME, print).down()
    assert traces(PLACES).beyond(before) == {}


def test_an_interrupted_start_clears_up_after_itself(before: Traces) -> None:
    process = start()
    read_until(process, "control plane")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=300) == 130
    assert traces(PLACES).beyond(before) == {}
    assert not PLACES.root.exists()


def test_a_start_after_a_killed_start_just_works(before: Traces) -> None:
    process = start()
    read_until(process, "box")
    process.kill()
    process.wait()
    cluster = Cluster(NAME, print)
    cluster.up()
    assert cluster.is_up()
    assert len(cluster.kubectl("get", "nodes", "-o", "name").split()) == 3


def test_a_second_up_finds_the_cluster_and_down_without_one_is_fine(before: Traces) -> None:
    cluster = Cluster(NAME, print)
    cluster.up()
    first = cluster.box.pid()
    cluster.up()
    assert cluster.box.pid() == first
    os.kill(first, signal.SIGKILL)  # the whole cluster, from behind
    assert cluster.down()
    assert not cluster.down()
    assert traces(PLACES).beyond(before) == {}
