"""Ctrl-C while a run is being submitted: the real command, a little API server that presses it at a chosen request."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.kube.little_cluster import LittleCluster
from windlass.engines.kubernetes.cluster import Cluster

JOB = """
name: cut
image: python:3.12
shape: allreduce
ranks: 2
run: sleep 60
storage:
  data: {make: {size: 1Gi}}
"""


@pytest.fixture
def cluster() -> Iterator[LittleCluster]:
    found = LittleCluster()
    yield found
    found.close()


def submitted(tmp_path: Path, cluster: LittleCluster, at: list[tuple[str, str]]) -> tuple[int, str]:
    """`windlass run`, interrupted at each of some requests in turn; its exit code and what it said."""
    (tmp_path / "job.yaml").write_text(JOB)
    environ = {**os.environ, "WINDLASS_HOME": str(tmp_path), "KUBECONFIG": cluster.kubeconfig(tmp_path / "kubeconfig")}
    command = [sys.executable, "-m", "windlass", "run", "job.yaml", "--on", "kubernetes", "--detach"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True)

    def carried_out(method: str, kind: str) -> None:
        if at and (method, kind) == at[0]:
            del at[0]
            process.send_signal(signal.SIGINT)

    cluster.carried_out = carried_out
    _, said = process.communicate(timeout=60)
    return process.returncode, said


@pytest.mark.parametrize(
    "at",
    [("POST", "ConfigMap"), ("POST", "PersistentVolumeClaim"), ("PATCH", "Service"), ("PATCH", "StatefulSet")],
    ids=" ".join,
)
def test_an_interrupt_while_submitting_takes_back_what_was_made(
    at: tuple[str, str], tmp_path: Path, cluster: LittleCluster
) -> None:
    waiting = [at]
    code, said = submitted(tmp_path, cluster, waiting)
    assert not waiting, said
    assert code == 130, said
    assert "is taken back" in said
    assert cluster.staying() == []


def test_a_second_interrupt_ends_the_clean_up_and_says_what_removes_the_rest(
    tmp_path: Path, cluster: LittleCluster
) -> None:
    code, said = submitted(tmp_path, cluster, [("PATCH", "Service"), ("DELETE", "PersistentVolumeClaim")])
    assert code == 130, said
    [run] = [run.id for run in Cluster({"KUBECONFIG": str(tmp_path / "kubeconfig")}).runs()]
    assert f"windlass rm --force {run} --on kubernetes -n default" in said


def test_a_refusal_takes_back_what_was_made(tmp_path: Path, cluster: LittleCluster) -> None:
    code, said = submitted(tmp_path, cluster, [])
    assert code == 0, said
    kept = len(cluster.staying())
    claim = cluster.objects["PersistentVolumeClaim", "cut-data"]
    claim["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "somebody"
    code, said = submitted(tmp_path, cluster, [])
    assert code == 2, said
    assert "that Windlass has not made" in said
    assert len(cluster.staying()) == kept
