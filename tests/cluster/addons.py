"""What some tests need beside the cluster: metrics for autoscalers, an S3 server, a registry, many made-up nodes.

Built on demand, since few need them.
"""

import json
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from tests.cluster import images, pins, programs
from tests.cluster.cluster import Cluster, Say
from tests.cluster.errors import ClusterError
from tests.cluster.places import home, locked

# kwok's own descriptions of how its nodes and pods behave; without one for completion, pods of Jobs run on.
_STAGES = (
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/general/pod-create.yaml",
    "pod/general/pod-ready.yaml",
    "pod/general/pod-delete.yaml",
)


def add(cluster: Cluster, name: str, say: Say) -> None:
    """Add one to a running cluster; a second time changes nothing."""
    if name not in _ADDONS:
        raise ClusterError(f"there is no {name} to add", f"there are {', '.join(_ADDONS)}")
    with _adding(cluster, name):
        _ADDONS[name](cluster, say)


def image(cluster: Cluster, name: str, say: Say) -> str:
    """Gives every node an image that only some tests need; its name."""
    with _adding(cluster, name):
        if not _has_image(cluster, name):
            say(f"making {pins.image(name)}")
            cluster.load(images.make(name, {}))
    return pins.image(name)


def _adding(cluster: Cluster, name: str) -> AbstractContextManager[None]:
    """Of the tests that need the same thing, the first adds it and the others wait."""
    return locked(home() / "state" / f"{cluster.places.name}.{name}.lock")


def _has_image(cluster: Cluster, name: str) -> bool:
    return all(pins.image(name) in cluster.images(node) for node in cluster.nodes())


def _metrics_server(cluster: Cluster, say: Say) -> None:
    _deploy(cluster, say, "metrics-server", "metrics-server", "kube-system")
    cluster.kubectl("wait", "--for=condition=Available", "apiservice/v1beta1.metrics.k8s.io", "--timeout=300s")


def _s3(cluster: Cluster, say: Say) -> None:
    _deploy(cluster, say, "versitygw", "s3", "s3")
    _await_port(cluster.node("0").address, 30070)
    say(f"s3: http://s3.s3:7070 in pods, http://{cluster.node('0').address}:30070 here")
    say("AWS_ACCESS_KEY_ID=longboat-test AWS_SECRET_ACCESS_KEY=longboat-test-secret AWS_REGION=us-east-1")


def _registry(cluster: Cluster, say: Say) -> None:
    """Nodes pull `localhost:30500/...`: containerd speaks plain http to nothing else, and kube-proxy listens there."""
    _deploy(cluster, say, "registry", "registry", "registry")
    _await_port(cluster.node("0").address, 30500)
    say("registry: localhost:30500 for nodes, and here: kubectl -n registry port-forward service/registry 30500:5000")
    say("user longboat, password longboat-test")


def _deploy(cluster: Cluster, say: Say, program: str, name: str, namespace: str) -> None:
    if not _has_image(cluster, program):
        cluster.load(images.make(program, programs.build(say, (pins.ADDONS[program],))))
    cluster.kubectl("apply", "--server-side", "-f", str(pins.MANIFESTS / f"{name}.yaml"))
    cluster.kubectl("-n", namespace, "rollout", "status", f"deployment/{name}", "--timeout=300s")


def _await_port(address: str, port: int) -> None:
    """A Service answers a little later than its pods are ready: kube-proxy has to hear of them first."""
    deadline = time.monotonic() + 300
    while True:
        try:
            socket.create_connection((address, port), timeout=5).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _kwok(cluster: Cluster, say: Say, count: int = 100) -> None:
    """Nodes without machines, tainted, where pods need no image and seem to run at once."""
    module = pins.ADDONS["kwok"]
    kwok = programs.build(say, (module,))["kwok"]
    source = programs.source(module, "sigs.k8s.io/kwok")
    stages = cluster.places.root / "kwok.yaml"
    stages.write_text("\n---\n".join((source / "kustomize/stage" / stage).read_text() for stage in _STAGES))
    if cluster.box.programs().get("kwok", 0) is not None:
        command = [str(kwok), f"--kubeconfig={cluster.places.kubeconfig}", f"--config={stages}"]
        command += ["--manage-all-nodes=false", "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake"]
        cluster.box.spawn("kwok", [*command, "--node-lease-duration-seconds=40"])
    nodes = cluster.places.root / "kwok-nodes.json"
    nodes.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [_fake(i) for i in range(count)]}))
    cluster.kubectl("apply", "--server-side", "-f", str(nodes))
    cluster.kubectl("wait", "--for=condition=Ready", "nodes", "-l", "type=kwok", "--timeout=300s")


def _fake(index: int) -> dict[str, object]:
    name = f"kwok-{index:03d}"
    room = {"cpu": "32", "memory": "256Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"type": "kwok", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
        },
        "spec": {"taints": [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]},
        "status": {"allocatable": room, "capacity": room},
    }


_ADDONS: dict[str, Callable[[Cluster, Say], None]] = {
    "metrics-server": _metrics_server,
    "s3": _s3,
    "registry": _registry,
    "kwok": _kwok,
}
NAMES = tuple(_ADDONS)
