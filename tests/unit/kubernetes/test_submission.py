"""Submitting while something else happens: a little API server presses Ctrl-C on the real command at a chosen request,
or lets others submit and resume at it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import longboat
from longboat.engines.kubernetes import storage, submission
from longboat.engines.kubernetes.cluster import Cluster
from longboat.engines.kubernetes.submission import ResumeOrder
from longboat.manifests.run_objects import SubmitOptions
from longboat.runtime.errors import LongboatError
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import Manifest
from longboat.runtime.plan import Plan
from tests.unit.kubernetes.little_cluster import LittleCluster

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
    """`longboat run`, interrupted at each of some requests in turn; its exit code and what it said."""
    (tmp_path / "job.yaml").write_text(JOB)
    environ = {**os.environ, "LONGBOAT_HOME": str(tmp_path), "KUBECONFIG": cluster.kubeconfig(tmp_path / "kubeconfig")}
    command = [sys.executable, "-m", "longboat", "run", "job.yaml", "--on", "kubernetes", "--detach"]
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
    assert "interrupted: deleting what was created of " in said
    assert cluster.staying() == []


def test_a_second_interrupt_ends_the_clean_up_and_says_what_removes_the_rest(
    tmp_path: Path, cluster: LittleCluster
) -> None:
    code, said = submitted(tmp_path, cluster, [("PATCH", "Service"), ("DELETE", "PersistentVolumeClaim")])
    assert code == 130, said
    [run] = [run.id for run in Cluster({"KUBECONFIG": str(tmp_path / "kubeconfig")}).runs()]
    assert f"longboat rm --force {run} --on kubernetes -n default" in said


def test_a_refusal_takes_back_what_was_made(tmp_path: Path, cluster: LittleCluster) -> None:
    code, said = submitted(tmp_path, cluster, [])
    assert code == 0, said
    kept = len(cluster.staying())
    claim = cluster.objects["PersistentVolumeClaim", "cut-data"]
    claim["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "somebody"
    code, said = submitted(tmp_path, cluster, [])
    assert code == 2, said
    assert "that Longboat has not made" in said
    assert len(cluster.staying()) == kept


class Others:
    """What others do at a chosen request of ours, each in turn, before that is answered."""

    def __init__(self, cluster: LittleCluster, at: tuple[str, str], *acts: Callable[[], object]) -> None:
        self._at, self.acts = at, list(acts)
        cluster.carried_out = self._carried_out

    def _carried_out(self, method: str, kind: str) -> None:
        if self.acts and (method, kind) == self._at:
            self.acts.pop(0)()


@pytest.fixture
def asked(tmp_path: Path, cluster: LittleCluster) -> Callable[[], Cluster]:
    """The cluster as each of several laptops knows it."""
    kubeconfig = cluster.kubeconfig(tmp_path / "kubeconfig")
    return lambda: Cluster({"KUBECONFIG": kubeconfig})


def planned(tmp_path: Path, more: str) -> Plan:
    (tmp_path / "job.yaml").write_text(f"name: cut\nimage: python:3.12\nrun: sleep 60\n{more}")
    return longboat.load(tmp_path, on="kubernetes", environ={}).plan()


def silent(_text: str) -> None:
    pass


def names_of(made: list[Manifest]) -> set[str]:
    return {f"{obj['kind']} {obj['metadata']['name']}" for obj in made}


@pytest.mark.parametrize(
    ("asks", "at"),
    [
        ("{size: 1Gi}", ("GET", "PersistentVolumeClaim")),
        ("{size: 1Gi, nfs: true}", ("GET", "PersistentVolumeClaim")),
        ("{size: 1Gi, nfs: true}", ("POST", "Service")),
        ("{size: 1Gi, nfs: true}", ("POST", "StatefulSet")),
        ("{size: 1Gi, nfs: true}", ("POST", "PersistentVolume")),
    ],
)
def test_two_that_make_the_same_storage_at_once_share_it_and_each_takes_back_only_its_own(
    tmp_path: Path, cluster: LittleCluster, asked: Callable[[], Cluster], asks: str, at: tuple[str, str]
) -> None:
    plan = planned(tmp_path, f"storage: {{data: {{make: {asks}}}}}\n")
    theirs: list[Manifest] = []
    others = Others(cluster, at, lambda: theirs.extend(storage.make(asked(), plan, "cut-bbbb", silent)))
    ours = storage.make(asked(), plan, "cut-aaaa", silent)
    assert not others.acts
    assert not names_of(ours) & names_of(theirs)
    assert names_of(ours) | names_of(theirs) == set(cluster.staying())
    storage.take_back(asked(), ours)
    assert set(cluster.staying()) == names_of(theirs)


def test_a_volume_that_is_left_of_a_deleted_claim_is_named_and_the_servers_disk_stays(
    tmp_path: Path, cluster: LittleCluster, asked: Callable[[], Cluster]
) -> None:
    plan = planned(tmp_path, "storage: {data: {make: {size: 1Gi, nfs: true}}}\n")
    storage.make(asked(), plan, "cut-aaaa", silent)
    del cluster.objects["PersistentVolumeClaim", "cut-data"]
    cluster.objects["PersistentVolume", "default-cut-data"]["status"] = {"phase": "Released"}
    there = cluster.staying()
    with pytest.raises(LongboatError, match="the volume default-cut-data belongs to a claim that was deleted"):
        storage.make(asked(), plan, "cut-bbbb", silent)
    assert cluster.staying() == there


@pytest.mark.parametrize("before", [0, 1], ids=["it is made", "it is there"])
def test_runs_that_are_submitted_at_once_share_the_account_of_their_job(
    tmp_path: Path, cluster: LittleCluster, asked: Callable[[], Cluster], monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """All look for it before one of them has made or changed it."""
    monkeypatch.setattr(submission, "DRIVER_SOON", 0.0)
    plan = planned(tmp_path, "security: {service_account: cloud, annotations: {role: reader}}\n")

    def submit() -> str:
        return submission.submit(asked(), plan, SubmitOptions(), {})

    runs = [submit() for _ in range(before)]
    others = Others(cluster, ("GET", "ServiceAccount"), *[lambda: runs.append(submit())] * 2)
    runs.append(submit())
    assert not others.acts
    owners = cluster.objects["ServiceAccount", "cloud"]["metadata"]["ownerReferences"]
    assert sorted(owner["name"] for owner in owners) == sorted(runs)
    assert len(set(runs)) == before + 3


@pytest.fixture
def run(tmp_path: Path, cluster: LittleCluster, asked: Callable[[], Cluster], monkeypatch: pytest.MonkeyPatch) -> str:
    """A run that was submitted."""
    monkeypatch.setattr(submission, "DRIVER_SOON", 0.0)
    monkeypatch.setattr(submission, "RESUMED", 60.0)
    return submission.submit(asked(), planned(tmp_path, ""), SubmitOptions(), {})


def new_driver(cluster: LittleCluster, run: str) -> None:
    """What the StatefulSet makes of the order that it was given last."""
    notes = cluster.objects["StatefulSet", names.driver(run)]["spec"]["template"]["metadata"].get("annotations", {})
    pod = {"kind": "Pod", "metadata": {"name": names.driver_pod(run), "annotations": dict(notes)}}
    status = {"phase": "Running", "containerStatuses": [{"state": {"running": {"startedAt": "now"}}}]}
    cluster.objects["Pod", names.driver_pod(run)] = pod | {"status": status}


def ordered(cluster: LittleCluster, run: str) -> str:
    return str(json.loads(cluster.objects["ConfigMap", run]["data"][names.ORDERS])["order"])


@pytest.mark.parametrize("renewed", [False, True], ids=["as it is", "with a new plan"])
def test_of_two_that_resume_a_run_at_once_the_later_one_is_told_and_changes_nothing(
    tmp_path: Path, cluster: LittleCluster, asked: Callable[[], Cluster], run: str, renewed: bool
) -> None:
    plan = planned(tmp_path, "") if renewed else None
    root = asked().api.get("ConfigMap", run)
    Others(cluster, ("PATCH", "StatefulSet"), *[lambda: new_driver(cluster, run)] * 9)
    submission.resume(asked(), run, ResumeOrder("first", plan=plan), root)
    before = {key: json.dumps(obj) for key, obj in cluster.objects.items()}
    with pytest.raises(LongboatError, match=f"somebody else has just resumed {run}"):
        submission.resume(asked(), run, ResumeOrder("second", plan=plan), root)
    assert {key: json.dumps(obj) for key, obj in cluster.objects.items()} == before
    assert ordered(cluster, run) == "first"


def test_who_is_overtaken_while_waiting_for_the_new_driver_is_told(
    cluster: LittleCluster, asked: Callable[[], Cluster], run: str
) -> None:
    def overtake() -> None:
        Others(cluster, ("PATCH", "StatefulSet"), lambda: new_driver(cluster, run))
        submission.resume(asked(), run, ResumeOrder("second"), asked().api.get("ConfigMap", run))

    Others(cluster, ("PATCH", "StatefulSet"), overtake)
    with pytest.raises(LongboatError, match=f"somebody else has just resumed {run}"):
        submission.resume(asked(), run, ResumeOrder("first"), asked().api.get("ConfigMap", run))
    assert ordered(cluster, run) == "second"


def test_what_a_driver_notes_in_the_root_meanwhile_does_not_keep_a_run_from_going_on(
    cluster: LittleCluster, asked: Callable[[], Cluster], run: str
) -> None:
    root = asked().api.get("ConfigMap", run)
    asked().api.patch("ConfigMap", run, {"metadata": {"annotations": {names.STATE: "failed"}}})
    Others(cluster, ("PATCH", "StatefulSet"), lambda: new_driver(cluster, run))
    submission.resume(asked(), run, ResumeOrder("first"), root)
    assert ordered(cluster, run) == "first"
    assert cluster.objects["ConfigMap", run]["metadata"]["annotations"][names.STATE] == "submitted"


def test_a_resumed_run_has_the_debug_log_of_its_latest_order(
    cluster: LittleCluster, asked: Callable[[], Cluster], run: str
) -> None:
    Others(cluster, ("PATCH", "StatefulSet"), *[lambda: new_driver(cluster, run)] * 2)
    for order, level in (("first", "debug"), ("second", "")):
        setting = SubmitOptions(log=level)
        submission.resume(asked(), run, ResumeOrder(order, setting=setting), asked().api.get("ConfigMap", run))
        assert names.log_level(cluster.objects["ConfigMap", run]) == level


def test_an_order_for_which_no_driver_was_made_is_told_from_one_that_is_taken_up(
    cluster: LittleCluster, asked: Callable[[], Cluster], run: str
) -> None:
    lone = {"data": {names.ORDERS: ResumeOrder("first").text}, "metadata": {"annotations": {names.ORDER: "first"}}}
    asked().api.patch("ConfigMap", run, lone)  # and who gave it was killed here
    root = asked().api.get("ConfigMap", run)
    assert submission.order_of(root) == "first"
    assert not submission.is_handed_over(asked(), root)
    Others(cluster, ("PATCH", "StatefulSet"), lambda: new_driver(cluster, run))
    submission.resume(asked(), run, ResumeOrder("second"), root)
    assert submission.is_handed_over(asked(), asked().api.get("ConfigMap", run))
