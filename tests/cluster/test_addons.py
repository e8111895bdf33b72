"""What can be added to a cluster really does its work."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from longboat.runtime.buckets import bucket_http
from longboat.runtime.buckets.s3 import S3
from tests.cluster.addons import add
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError

JOB = """
name: bucket
storage: {weights: s3://models/a run}
stages:
  first:
    run: |
      cd "$LONGBOAT_MOUNT_WEIGHTS"; mkdir -p deep; echo one > "deep/b+c d.txt"
      [ -e large ] || head -c 70000000 /dev/urandom > large
  second: {after: first, run: 'cd "$LONGBOAT_MOUNT_WEIGHTS"; echo two >> "deep/b+c d.txt"; sha256sum large'}
"""


@pytest.mark.addon
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


def test_runs_fetch_their_storage_from_a_real_s3_server_and_send_it_back(cluster: Cluster, tmp_path: Path) -> None:
    add(cluster, "s3", print)
    keys = {"AWS_ACCESS_KEY_ID": "longboat-test", "AWS_SECRET_ACCESS_KEY": "longboat-test-secret"}
    env = {**os.environ, **keys, "AWS_ENDPOINT_URL": f"http://{cluster.node('0').address}:30070"}
    store = S3("models", env)
    bucket_http.exchange(lambda: store._request("PUT", ""))
    (tmp_path / "job.yaml").write_text(JOB)

    def run(**more: str) -> str:
        told = {**env, **more, "LONGBOAT_HOME": str(tmp_path / "home"), "NO_COLOR": "1"}
        command = [sys.executable, "-m", "longboat", "run"]
        done = subprocess.run(command, cwd=tmp_path, env=told, stderr=subprocess.PIPE, text=True, check=False)
        return f"{done.returncode} {done.stderr}"

    first = run()
    assert first.startswith("0 "), first
    assert "2 files sent to s3://models/a run" in first
    assert "1 files sent to s3://models/a run" in first, "the second stage changed one of them"
    found = {each.key: each.size for each in store.list("")}
    assert found == {"a run/deep/b+c d.txt": 8, "a run/large": 70_000_000}
    second = run()
    assert "2 files fetched from s3://models/a run" in second
    assert re.findall(r"[0-9a-f]{64}", first) == re.findall(r"[0-9a-f]{64}", second)
    refused = run(AWS_SECRET_ACCESS_KEY="wrong")
    assert refused.startswith("1 ")
    assert "storage weights could not be fetched" in refused
    assert "403 SignatureDoesNotMatch" in refused


@pytest.mark.addon
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
                    "containers": [{"name": "main", "image": "longboat.test/python:1"}],
                }
            },
        },
    }
    path = cluster.places.root / "big.json"
    path.write_text(json.dumps(job))
    cluster.kubectl("apply", "-f", str(path))
    cluster.kubectl("wait", f"--for=jsonpath={{.status.ready}}={count}", "job/big", "--timeout=300s")
