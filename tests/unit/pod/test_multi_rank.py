"""Ranks that share a pod."""

from __future__ import annotations

from pathlib import Path

import pytest

from longboat import spec
from longboat.manifests import run_objects
from longboat.manifests.payload import Payload
from longboat.runtime.errors import LongboatError
from longboat.runtime.kube_client.api import Manifest
from longboat.runtime.pod import multi_rank, pod_templates
from longboat.runtime.seat import Seat

ENVIRON = {
    "LONGBOAT_AGENT_SEAT": "train-it/worker-4",
    "LONGBOAT_AGENT_CREW": "2",
    "LONGBOAT_AGENT_GPUS": "2",
    "LONGBOAT_AGENT_DIRECTORY": "/longboat/run",
    "LONGBOAT_AGENT_DEPOT": "10.0.0.1:7078",
}


def templates(directory: Path, stage: str) -> dict[str, Manifest]:
    (directory / "job.yaml").write_text(f"name: job\nimage: i\nrun: 'true'\n{stage}")
    plan = spec.load(
        str(directory), sets={}, environ={}, preset=None, engine="kubernetes", remote=True, env_files=[]
    ).plan()
    run_objects.check(plan)
    return run_objects.templates(plan, "job-x", Payload(b""))


def test_each_agent_has_its_seat_its_directory_and_its_gpus() -> None:
    first, second = multi_rank.environments(ENVIRON)
    assert (first["LONGBOAT_AGENT_SEAT"], second["LONGBOAT_AGENT_SEAT"]) == ("train-it/worker-4", "train-it/worker-5")
    assert (first["LONGBOAT_AGENT_GPUS"], second["LONGBOAT_AGENT_GPUS"]) == ("0,1", "2,3")
    assert second["LONGBOAT_AGENT_DIRECTORY"] == "/longboat/run/1"


def test_a_directory_that_all_pods_share_is_everybodys() -> None:
    shared = {**ENVIRON, "LONGBOAT_AGENT_DEPOT": "", "LONGBOAT_AGENT_GPUS": "0"}
    assert {each["LONGBOAT_AGENT_DIRECTORY"] for each in multi_rank.environments(shared)} == {"/longboat/run"}
    assert {each["LONGBOAT_AGENT_GPUS"] for each in multi_rank.environments(shared)} == {""}, "nothing to divide"


def test_a_pod_asks_for_all_its_ranks(tmp_path: Path) -> None:
    stage = "shape: allreduce\nranks: 4\nper_node: 2\nresources: {cpu: 0.5, memory: 1Gi, gpu: 1}\n"
    (pod,) = templates(tmp_path, stage).values()
    assert pod["spec"]["containers"][0]["resources"] == {
        "requests": {"cpu": "1", "memory": "2Gi"},
        "limits": {"nvidia.com/gpu": "2"},
    }
    assert pod_templates.seats_per_pod(pod) == 2
    assert pod_templates.first_of(Seat("main", "worker", 3), 2) == ("main", "worker", 2)


@pytest.mark.parametrize(
    ("stage", "message", "hint"),
    [
        ("shape: allreduce\nranks: 6\nper_node: 4\n", "6 ranks do not fill pods of 4: 2 are left over", "2, 3, 6"),
        ("shape: average\nranks: 4\nper_node: 2\nmerge: 'true'\n", "needs shape allreduce", "its own pod"),
        ("shape: mpi\nranks: 4\nper_node: 2\n", "needs shape allreduce", "its own pod"),
    ],
)
def test_what_cannot_share_a_pod_is_refused(tmp_path: Path, stage: str, message: str, hint: str) -> None:
    with pytest.raises(LongboatError, match=message) as error:
        templates(tmp_path, stage)
    assert hint in error.value.hint
