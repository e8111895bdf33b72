"""What can be added to a cluster really does its work."""

import hashlib
import hmac
import json
import time
import urllib.error
import urllib.request

import pytest

from tests.cluster.addons import add
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError


def test_metrics_server_knows_what_nodes_and_pods_use(cluster: Cluster) -> None:
    add(cluster, "metrics-server", print)
    deadline = time.monotonic() + 90
    while True:
        try:
            lines = cluster.kubectl("top", "nodes", "--no-headers").splitlines()
            if sum("<unknown>" not in line for line in lines) == 3:
                break
        except ClusterError:
            pass  # no figures yet: the first come after two rounds of asking
        assert time.monotonic() < deadline, "no figures came"
        time.sleep(1)
    assert "coredns" in cluster.kubectl("-n", "kube-system", "top", "pods")


def signed(method: str, url: str, body: bytes = b"") -> urllib.request.Request:
    """An S3 request with Amazon's signature, version 4."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    host, _, path = url.removeprefix("http://").partition("/")
    digest = hashlib.sha256(body).hexdigest()
    headers = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": moment}
    names = ";".join(headers)
    lines = [method, f"/{path}", "", *(f"{name}:{value}" for name, value in headers.items()), "", names, digest]
    scope = [moment[:8], "us-east-1", "s3", "aws4_request"]
    told = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    key = b"AWS4windlass-test-secret"
    for part in [*scope, f"AWS4-HMAC-SHA256\n{moment}\n{'/'.join(scope)}\n{told}"]:
        key = hmac.digest(key, part.encode(), "sha256")
    credential = f"Credential=windlass-test/{'/'.join(scope)}, SignedHeaders={names}, Signature={key.hex()}"
    headers["authorization"] = f"AWS4-HMAC-SHA256 {credential}"
    return urllib.request.Request(url, body or None, headers, method=method)


def test_the_s3_server_keeps_what_it_is_given_and_refuses_strangers(cluster: Cluster) -> None:
    add(cluster, "s3", print)
    server = f"http://{cluster.node('0').address}:30070"
    for request in (signed("PUT", f"{server}/models"), signed("PUT", f"{server}/models/a/weights", b"1 2 3")):
        assert urllib.request.urlopen(request, timeout=10).status == 200
    assert urllib.request.urlopen(signed("GET", f"{server}/models/a/weights"), timeout=10).read() == b"1 2 3"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{server}/models/a/weights", timeout=10)
    assert refused.value.code == 403


def test_a_job_of_1000_pods_runs_on_nodes_that_do_not_exist(cluster: Cluster) -> None:
    add(cluster, "kwok", print)
    count = 1000
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "big"},
        "spec": {
            "completions": count,
            "parallelism": count,
            "completionMode": "Indexed",
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "nodeSelector": {"type": "kwok"},
                    "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
                    "containers": [{"name": "main", "image": "windlass.test/python:1"}],
                }
            },
        },
    }
    path = cluster.places.root / "big.json"
    path.write_text(json.dumps(job))
    cluster.kubectl("apply", "-f", str(path))
    cluster.kubectl("wait", f"--for=jsonpath={{.status.ready}}={count}", "job/big", "--timeout=300s")
