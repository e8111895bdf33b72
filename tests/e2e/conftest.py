"""A namespace of the cluster for each test file, as strict as Pod Security knows, and the command line to use it with.

Tests run side by side (docs/clusters.md): each worker makes its own namespaces.

The cluster is the one that KUBECONFIG names; without it these tests are left out.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from longboat.engines.kubernetes import storage
from longboat.engines.kubernetes.cluster import Cluster
from tests.e2e.place import PATIENCE, Place
from tests.e2e.side_by_side import ByGroup, position

PYTHON = os.environ.get("LONGBOAT_TEST_IMAGE", "longboat.test/python:1")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests that break clusters together (`side_by_side`)."""
    config.option.loadscopereorder = True  # the groups begin first: they take longest
    return ByGroup(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: position(item.nodeid) if "tests/e2e/" in str(item.path) else -1)
    if not os.environ.get("KUBECONFIG"):
        skip = pytest.mark.skip(reason="KUBECONFIG names no cluster; `make e2e` brings one")
        for item in items:
            if "tests/e2e/" in str(item.path):
                item.add_marker(skip)


@pytest.fixture(scope="module")
def kubeconfig() -> None:
    """KUBECONFIG stays as it is; a file whose tests need another cluster overrides this."""


@pytest.fixture(scope="session")
def session_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all workers of this session."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="module")
def namespace(kubeconfig: None) -> Iterator[str]:
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
