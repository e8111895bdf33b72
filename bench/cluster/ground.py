"""What the benches of a cluster stand on: a namespace of their own, job files, the command line."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from longboat.engines.kubernetes.cluster import Cluster
from longboat.runtime.kube_client.api import Manifest

IMAGE = "longboat.test/python:1"
PATIENCE = 120.0


@dataclass(frozen=True)
class Ground:
    namespace: str
    directory: Path
    cluster: Cluster
    image: str

    @property
    def longboat(self) -> list[str]:
        return [sys.executable, "-m", "longboat"]

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "LONGBOAT_HOME": str(self.directory / "home"), "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}

    def job(self, text: str, *programs: Path) -> Path:
        """A job file, with programs beside it."""
        place = self.directory / f"job-{uuid.uuid4().hex[:6]}"
        place.mkdir()
        (place / "job.yaml").write_text(text)
        for program in programs:
            shutil.copy(program, place)
        return place

    def empty(self) -> None:
        """Removes all runs; returns when no pod is left, so that what comes next has the machine for itself."""
        for run in self.cluster.runs():
            self.cluster.remove(run.id)
        due = time.monotonic() + PATIENCE
        while self.cluster.api.list("Pod") and time.monotonic() < due:
            time.sleep(0.1)


@contextmanager
def ground() -> Iterator[Ground]:
    """On the cluster that KUBECONFIG names; the namespace goes again."""
    api = Cluster(os.environ).api
    name = f"longboat-bench-{uuid.uuid4().hex[:6]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    space: Manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    api.create(space)
    try:
        with tempfile.TemporaryDirectory() as directory:
            image = os.environ.get("LONGBOAT_TEST_IMAGE", IMAGE)
            yield Ground(name, Path(directory), Cluster(os.environ, namespace=name), image)
    finally:
        api.delete("Namespace", name)
