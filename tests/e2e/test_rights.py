"""A user with the stock role `edit` is told what an admin has to give, and runs once that is given."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from longboat.engines.kubernetes.cluster import Cluster
from tests.e2e import jobs
from tests.e2e.place import Place

pytestmark = pytest.mark.slow


@pytest.fixture
def user(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Somebody who may edit the namespace, with a kubeconfig of their own."""
    api = place.cluster.api
    api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "editor"}})
    group = "rbac.authorization.k8s.io"
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "editor"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "ServiceAccount", "name": "editor", "namespace": place.namespace}],
    }
    api.create(binding)
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = api.request("POST", api.path("ServiceAccount", "editor") + "/token", asked)["status"]["token"]
    with open(os.environ["KUBECONFIG"]) as file:
        found = yaml.safe_load(file)
    found["users"] = [{"name": each["name"], "user": {"token": token}} for each in found["users"]]
    home = os.path.dirname(os.environ["KUBECONFIG"])
    for each in found["clusters"]:
        if "certificate-authority" in each["cluster"]:
            each["cluster"]["certificate-authority"] = os.path.join(home, each["cluster"]["certificate-authority"])
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(found))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    return Place(place.namespace, tmp_path)


def test_who_may_not_give_rights_is_told_what_an_admin_must_apply_and_then_runs(place: Place, user: Place) -> None:
    job = user.job(jobs.gang(10, 0.0, extra="storage: {kept: {make: {size: 1Gi, nfs: true}}}"), "gang_sgd.py")
    there = ("--on", "kubernetes", "-n", user.namespace)
    said = user.longboat("run", job, *there, code=2)
    assert "cannot" in said
    assert "roles" in said
    place.until(lambda: not place.cluster.left())  # what was made before the refusal is gone again
    assert user.longboat("doctor", *there, code=0).count("you lack the permission to create") == 1
    assert "needs; a claim will be made instead" in user.longboat("doctor", job, *there, "--no-probe")
    documents = said.partition("---\n")[2].partition("then: longboat run")[0]
    admin = Cluster({**os.environ, "KUBECONFIG": place.kubeconfig}, namespace=place.namespace)
    for obj in yaml.safe_load_all(documents):
        admin.api.apply(obj)
    said = user.longboat("run", job, *there, "--service-account", "longboat-driver")
    assert "you may not create persistentvolumes, so a claim is made instead of an NFS server" in said
    run = said.partition("submitted ")[2].split()[0]
    assert user.events(run)[-1]["state"] == "succeeded"
    assert "removed PersistentVolumeClaim gang-kept" in user.longboat("rm", run, "--data")
