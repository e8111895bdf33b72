"""Storage that a job lets the cluster make: compared with a file that a person has read; never the run's to remove."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from longboat.manifests import rank_pods, volumes, yaml_text
from longboat.runtime.errors import LongboatError
from longboat.runtime.kube_client import names
from tests.unit.manifests.test_run_objects import made, of, planned

GOLDEN = Path(__file__).with_name("golden-storage.yaml")
JOB = """
name: wide
image: registry.example/wide:1
storage:
  fast: {make: {size: 10Gi, class: fast, mode: ReadWriteOnce}}
  shared: {make: {size: 1Ti, nfs: true}}
  old: {make: {nfs: true, disk: archive, image: registry.example/nfs:2}}
  theirs: {pvc: samples}
run: python train.py
"""


def test_the_objects_of_made_storage_are_those_of_the_golden_file(tmp_path: Path) -> None:
    written = yaml_text.yaml_of(volumes.objects(planned(tmp_path, JOB), "wide-bobok", "team"))
    if os.environ.get("LONGBOAT_WRITE_GOLDEN"):
        GOLDEN.write_text(written)
    assert written == GOLDEN.read_text(), "if this is meant: LONGBOAT_WRITE_GOLDEN=1, then read the difference"


def test_what_a_run_removes_holds_no_made_storage(tmp_path: Path) -> None:
    plan = planned(tmp_path, JOB)
    kept = {(obj["kind"], obj["metadata"]["name"]) for obj in volumes.objects(plan, "wide-bobok", "team")}
    assert not kept & {(obj["kind"], obj["metadata"]["name"]) for obj in made(plan)}
    assert all(
        obj["metadata"]["labels"][names.PART_LABEL] == "storage" for obj in volumes.objects(plan, "wide-bobok", "team")
    )
    with pytest.raises(LongboatError, match="needs a namespace"):
        volumes.objects(plan, "wide-bobok", "")


def test_storage_of_one_node_brings_all_ranks_to_that_node(tmp_path: Path) -> None:
    pod = json.loads(of(made(planned(tmp_path, JOB)), "ConfigMap", "wide-bobok")["data"]["pod.main.worker.json"])
    (term,) = pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"]["matchLabels"] == {names.RUN_LABEL: "wide-bobok", names.PART_LABEL: "rank"}
    many = JOB.replace("ReadWriteOnce", "ReadWriteMany")
    pod = json.loads(of(made(planned(tmp_path, many)), "ConfigMap", "wide-bobok")["data"]["pod.main.worker.json"])
    assert "affinity" not in pod["spec"]


def test_a_helper_sees_one_mount_with_no_rights_and_ends_by_itself(tmp_path: Path) -> None:
    job = JOB + "security: {user: 2000, service_account: trainer}\nsecrets: {KEY: {env: KEY}}\n"
    plan = planned(
        tmp_path, job.replace("theirs: {pvc: samples}", "theirs: {pvc: samples, read_only: true}\n  b: s3://b/x")
    )
    shown = {mount.name: rank_pods.helper_of(plan, "wide-bobok", mount)["spec"] for mount in plan.storage}
    claim = shown["theirs"]
    assert (claim["activeDeadlineSeconds"], claim["restartPolicy"]) == (rank_pods.HELPER_SECONDS, "Never")
    assert claim["automountServiceAccountToken"] is False
    assert claim["securityContext"]["runAsNonRoot"] is True
    assert {"name": "storage", "mountPath": "/longboat/mounts/theirs", "readOnly": True} in claim["containers"][0][
        "volumeMounts"
    ]
    assert not [each for each in claim["containers"][0]["env"] if each["name"] == "KEY"]
    assert shown["b"]["serviceAccountName"] == "trainer", "a bucket is opened with the rights of the ranks"
    assert [each for each in shown["b"]["containers"][0]["env"] if each["name"] == "KEY"]
