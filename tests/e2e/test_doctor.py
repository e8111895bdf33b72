"""`longboat doctor FILE --on kubernetes`: what keeps a job from running in a cluster is told before it is submitted."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from longboat.runtime.kube_client import names
from tests.e2e import jobs
from tests.e2e.place import Place

pytestmark = pytest.mark.slow

JOB = f"""
name: checked
image: {jobs.PYTHON}
storage:
  roots: {{pvc: roots}}
  seen: {{pvc: roots, read_only: true}}
  gone: {{pvc: rots}}
  made: {{make: 1Gi}}
secrets: {{KEY: {{secret: keys, key: first}}}}
security: {{user: 2000, service_account: nobody}}
stages:
  train: {{run: ls}}
  other: {{run: ls, shape: allreduce, ranks: {{worker: {{count: 1, image: "longboat.test/no-such:1"}}}}}}
"""

USER = "user 2000, group 2000, fs_group 2000"


@pytest.fixture
def claim_of_root(place: Place) -> Iterator[None]:
    """A bound claim on a directory that belongs to root."""
    api, name = place.cluster.api, place.namespace
    path = f"/tmp/longboat-{name}"
    bound = {"namespace": name, "name": "roots", "apiVersion": "v1", "kind": "PersistentVolumeClaim"}
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    host = {"path": path, "type": "DirectoryOrCreate"}
    volume = {**common, "capacity": {"storage": "1Gi"}, "hostPath": host, "claimRef": bound}
    claim = {**common, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}}
    api.create({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume})
    made = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "roots"}, "spec": claim}
    api.create(made)
    place.until(lambda: api.get("PersistentVolumeClaim", "roots")["status"]["phase"] == "Bound")
    yield
    api.delete("PersistentVolumeClaim", "roots")
    api.delete("PersistentVolume", name)
    with contextlib.suppress(OSError):
        os.rmdir(path)


@pytest.mark.usefixtures("claim_of_root")
def test_claims_users_images_secrets_and_accounts_of_a_job_are_tried_by_a_pod_that_goes_again(place: Place) -> None:
    there = ("--on", "kubernetes", "-n", place.namespace)
    said = place.longboat("doctor", place.job(JOB), *there, code=1)
    lines = [" ".join(line.split()) for line in said.splitlines()]
    for wanted in (
        "storage roots ok the claim roots is bound, ReadWriteMany",
        "storage gone missing there is no claim rots; there are: roots",
        "storage made ok the claim checked-made will be made",
        "secret KEY missing there is no Secret keys",
        "account missing there is no service account nobody",
        f"storage seen ok roots can be read by {USER}",
        f"storage roots missing roots cannot be written to by {USER}: Permission denied (it belongs to 0:0, mode 755)",
    ):
        assert wanted in lines, said
    assert any(line.startswith("image longboat.test/no-such:1 missing cannot pull image") for line in lines), said
    assert any(line.startswith(f"image {jobs.PYTHON} ok a pod has it and runs Python 3") for line in lines), said
    place.until(lambda: not place.cluster.api.list("Pod", f"{names.PART_LABEL}={names.PROBE}"))
    assert place.cluster.api.find("PersistentVolumeClaim", "checked-made") is None, "looking makes nothing"
    quick = place.longboat("doctor", place.job(jobs.single("ls")), *there, "--no-probe")
    assert "allows them" in quick
    assert "longboat run" in quick
