"""A namespace of the cluster for each test file, as strict as Pod Security knows, and the command line to use it with.

The cluster is the one that KUBECONFIG names; without it these tests are left out.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from longboat.engines.kubernetes import storage
from longboat.engines.kubernetes.cluster import Cluster
from tests.e2e.place import PATIENCE, Place

PYTHON = os.environ.get("LONGBOAT_TEST_IMAGE", "longboat.test/python:1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not os.environ.get("KUBECONFIG"):
        skip = pytest.mark.skip(reason="KUBECONFIG names no cluster; `make e2e` brings one")
        for item in items:
            if "tests/e2e/" in str(item.path):
                item.add_marker(skip)


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    api = Cluster(os.environ).api
    name = f"longboat-e2e-{uuid.uuid4().hex[:6]}"
    labels = {
        "pod-security.kubernetes.io/enforce": "restricted",
        "pod-security.kubernetes.io/enforce-version": "latest",
    }
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    due = time.monotonic() + PATIENCE
    while api.find("ServiceAccount", "default", name) is None:  # without it no pod is let in
        assert time.monotonic() < due, "the namespace got no service account"
        time.sleep(0.1)
    yield name
    api.delete("Namespace", name)


@pytest.fixture
def place(namespace: str, tmp_path: Path) -> Iterator[Place]:
    found = Place(namespace, tmp_path)
    yield found
    for run in found.cluster.runs():
        found.cluster.remove(run.id)
    storage.take_back(found.cluster, storage.made_by(found.cluster))


@pytest.fixture(scope="session")
def kubectl() -> str:
    """kubectl, from PATH or as $KUBECTL names it."""
    found = os.environ.get("KUBECTL") or shutil.which("kubectl")
    if not found:
        pytest.skip("there is no kubectl")
    return found
