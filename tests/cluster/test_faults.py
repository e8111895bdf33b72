"""Lost nodes and an absent control plane are real, and can be mended."""

import errno
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.faults import Faults
from tests.cluster.layers import Image, Layer


def until(true: Callable[[], bool], timeout: float = 300.0) -> None:
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.2)


def start_pod(cluster: Cluster, name: str, node: str, image: str = "python") -> None:
    """A pod that counts, on one node."""
    code = "import time, itertools; [(print(i, flush=True), time.sleep(0.2)) for i in itertools.count()]"
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": f"longboat.test/{image}:1", "command": ["python3", "-c", code]}],
        },
    }
    path = cluster.places.root / f"{name}.json"
    path.write_text(json.dumps(manifest))
    cluster.kubectl("apply", "-f", str(path))
    cluster.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=300s")


def address(cluster: Cluster, pod: str) -> str:
    return cluster.kubectl("get", "pod", pod, "-o", "jsonpath={.status.podIP}")


def reaches(cluster: Cluster, source: str, target: str) -> bool:
    """Whether one pod gets any answer from another; nobody listens, so a refusal is one."""
    code = f"import socket; socket.setdefaulttimeout(2); print(socket.socket().connect_ex(({target!r}, 9)))"
    return cluster.kubectl("exec", source, "--", "python3", "-c", code).strip() == str(errno.ECONNREFUSED)


def counts(cluster: Cluster, pod: str) -> bool:
    """Whether the pod's log grows."""
    seen = cluster.kubectl("logs", pod, "--tail=1")
    until(lambda: cluster.kubectl("logs", pod, "--tail=1") != seen)
    return True


def restarts(cluster: Cluster, pod: str) -> str:
    return cluster.kubectl("get", "pod", pod, "-o", "jsonpath={.status.containerStatuses[0].restartCount}")


def ready(cluster: Cluster, node: str) -> bool:
    query = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    return cluster.kubectl("get", "node", node, "-o", query) == "True"


def test_a_node_without_power_is_silent_and_comes_back(cluster: Cluster) -> None:
    start_pod(cluster, "lost", "node1")
    faults = Faults(cluster)
    faults.node_stop("node1")
    with pytest.raises(OSError):
        socket.create_connection((cluster.node("node1").address, 10250), timeout=1)
    with pytest.raises(ClusterError):
        cluster.kubectl("exec", "lost", "--request-timeout=3s", "--", "true")
    faults.node_start("1")
    until(lambda: ready(cluster, "node1"))
    # Its container died with it; kubelet starts it again.
    until(lambda: int(restarts(cluster, "lost") or 0) >= 1)
    cluster.kubectl("wait", "--for=condition=Ready", "pod/lost", "--timeout=300s")
    until(lambda: cluster.kubectl("logs", "lost", "--tail=1") != "")
    assert counts(cluster, "lost")


def test_pods_outlive_their_kubelet(cluster: Cluster) -> None:
    start_pod(cluster, "orphan", "node2")
    faults = Faults(cluster)
    faults.kubelet_stop("node2")
    with pytest.raises(ClusterError):
        cluster.kubectl("logs", "orphan")
    faults.kubelet_start("node2")
    until(lambda: ready(cluster, "node2"))
    start_pod(cluster, "after", "node2")
    assert counts(cluster, "orphan")
    assert restarts(cluster, "orphan") == "0"


def test_a_cut_node_reaches_nobody_until_it_is_healed(cluster: Cluster) -> None:
    start_pod(cluster, "near", "node0")
    start_pod(cluster, "far", "node2")
    target = address(cluster, "far")
    until(lambda: reaches(cluster, "near", target))
    faults = Faults(cluster)
    faults.net_cut("node2")
    assert not reaches(cluster, "near", target)
    faults.net_heal("node2")
    until(lambda: reaches(cluster, "near", target))
    assert counts(cluster, "far")


def test_the_api_server_goes_and_comes_with_its_objects(cluster: Cluster) -> None:
    cluster.kubectl("create", "configmap", "kept")
    faults = Faults(cluster)
    faults.api_stop()
    with pytest.raises(ClusterError):
        cluster.kubectl("get", "configmap", "kept")
    faults.api_start()
    assert cluster.kubectl("get", "configmap", "kept", "-o", "name").strip() == "configmap/kept"


@pytest.mark.parametrize(
    ("image", "code", "printed"),
    [
        ("python", "import ssl, sqlite3, sys; print(sys.version_info[:2])", "(3, 11)"),
        ("jax", "import jax; print(jax.numpy.arange(4).sum())", "6"),
        ("mpi", "from mpi4py import MPI; print(MPI.COMM_WORLD.size)", "1"),
    ],
)
def test_the_images_have_what_they_promise_and_no_longboat(
    cluster: Cluster, image: str, code: str, printed: str
) -> None:
    start_pod(cluster, f"has-{image}", "node0", image)
    assert cluster.kubectl("exec", f"has-{image}", "--", "python3", "-c", code).strip() == printed
    with pytest.raises(ClusterError, match="No module named 'longboat'"):
        cluster.kubectl("exec", f"has-{image}", "--", "python3", "-c", "import longboat")


def test_an_image_can_be_loaded_into_all_nodes(cluster: Cluster, tmp_path: Path) -> None:
    layer = Layer()
    layer.file("hello", b"hello", 0o755)
    archive = tmp_path / "hello.tar"
    Image("longboat.test/hello:1", (layer.write(tmp_path / "layer.tar"),), entrypoint=("/hello",)).write(archive)
    cluster.load(archive)
    for node in cluster.nodes():
        assert "longboat.test/hello:1" in cluster.images(node)
