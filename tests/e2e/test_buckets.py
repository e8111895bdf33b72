"""Storage in a bucket: pods fetch it from a real S3 server and send it back."""

from __future__ import annotations

import os

import pytest

from longboat.runtime.buckets import bucket_http
from longboat.runtime.buckets.s3 import S3
from tests.cluster.addons import add
from tests.cluster.cluster import Cluster
from tests.cluster.places import home
from tests.e2e.conftest import PYTHON
from tests.e2e.place import Place

KEYS = {"AWS_ACCESS_KEY_ID": "longboat-test", "AWS_SECRET_ACCESS_KEY": "longboat-test-secret"}
JOB = f"""
name: bucket
image: {PYTHON}
storage: {{weights: s3://%s/run}}
env: {{AWS_ENDPOINT_URL: "http://s3.s3:7070", {", ".join(f"{name}: {value}" for name, value in KEYS.items())}}}
stages:
  first: {{run: 'mkdir $LONGBOAT_MOUNT_WEIGHTS/deep; echo one > $LONGBOAT_MOUNT_WEIGHTS/deep/a'}}
  second: {{after: first, run: 'cat $LONGBOAT_MOUNT_WEIGHTS/deep/a'}}
"""


def test_pods_fetch_storage_from_a_bucket_and_send_it_back(place: Place) -> None:
    if not os.environ["KUBECONFIG"].startswith(str(home())):
        pytest.skip("KUBECONFIG names another cluster, and the S3 server is our own's")
    cluster = Cluster("test", print)
    add(cluster, "s3", print)
    store = S3(place.namespace, {**KEYS, "AWS_ENDPOINT_URL": f"http://{cluster.node('0').address}:30070"})
    bucket_http.exchange(lambda: store._request("PUT", ""))
    run = place.run(place.job(JOB % place.namespace))
    assert [each.key for each in store.list("")] == ["run/deep/a"]
    assert "one" in place.longboat("logs", run, "--on", "kubernetes", "-n", place.namespace, "--stage", "second")
    there = ("--on", "kubernetes", "-n", place.namespace)
    assert "4 B  storage/weights/deep/a" in place.longboat("ls", f"{run}:weights", *there)
    (place.directory / "b").write_text("two")
    place.longboat("cp", place.directory / "b", f"{run}:weights/deep", *there)
    assert [each.key for each in store.list("")] == ["run/deep/a", "run/deep/b"]
    place.longboat("cp", f"{run}:weights/deep", place.directory / "copy", *there)
    assert (place.directory / "copy" / "b").read_text() == "two"
    assert f"s3://{place.namespace}/run" in place.longboat("left", run, "-n", place.namespace)
    assert f"aws s3 rm --recursive s3://{place.namespace}/run" in place.longboat("rm", run, *there)
    assert len(list(store.list(""))) == 2, "what is in a bucket stays"
