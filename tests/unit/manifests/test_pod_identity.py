"""As whom ranks run: every pod of a job has the ids it asks for, their names, and the account that a cloud knows."""

from __future__ import annotations

import json
from pathlib import Path

from longboat.manifests import pod_identity
from longboat.runtime.plan import Security
from tests.unit.manifests.test_run_objects import made, of, planned

JOB = """
name: wide
image: registry.example/wide:1
security: {user: 2000, group: 3000, fs_group: 4000, user_name: ada, group_name: lab, annotations: {cloud/role: trainer}}
shape: mpi
ranks: 2
run: mpirun python train.py
"""


def test_launcher_workers_and_driver_run_as_the_user_that_the_job_names(tmp_path: Path) -> None:
    found = made(planned(tmp_path, JOB))
    root, driver = of(found, "ConfigMap", "wide-bobok"), of(found, "StatefulSet", "wide-bobok-driver")
    pods = {key: json.loads(value)["spec"] for key, value in root["data"].items() if key.startswith("pod.")}
    assert sorted(pods) == ["pod.main.launcher.json", "pod.main.worker.json"]
    for spec in [*pods.values(), driver["spec"]["template"]["spec"]]:
        held = spec["securityContext"]
        assert (held["runAsUser"], held["runAsGroup"], held["fsGroup"]) == (2000, 3000, 4000)
        places = {each["mountPath"]: each for each in spec["containers"][0]["volumeMounts"]}
        assert (places["/etc/passwd"]["subPath"], places["/etc/group"]["subPath"]) == ("passwd", "group")
    assert root["data"]["passwd"].splitlines()[0] == "ada:x:2000:3000:ada:/longboat/home:/bin/sh"
    assert root["data"]["group"].splitlines()[:2] == ["lab:x:3000:", "volumes:x:4000:"]
    assert pods["pod.main.worker.json"]["serviceAccountName"] == "wide", "named after the job"
    assert of(found, "ServiceAccount", "wide")["metadata"]["annotations"] == {"cloud/role": "trainer"}


def test_no_name_and_no_number_stands_twice_in_the_files() -> None:
    for security in (
        Security(0, 0, 0, "root", "root"),
        Security(0, user_name="ada"),
        Security(65534, 65534, user_name="nobody"),
        Security(5, 6, 6, "root", "volumes"),
    ):
        for text in pod_identity.files(security).values():
            fields = [line.split(":") for line in text.splitlines()]
            assert len({each[0] for each in fields}) == len(fields)
            assert len({each[2] for each in fields}) == len(fields)
            assert fields[0][0] in (security.user_name, security.group_name)


def test_a_job_without_names_leaves_the_files_of_the_image(tmp_path: Path) -> None:
    found = made(planned(tmp_path, "name: x\nimage: i\nrun: a\nsecurity: {user: 5, service_account: there}\n"))
    root = of(found, "ConfigMap", "wide-bobok")
    assert "passwd" not in root["data"]
    assert "/etc/passwd" not in root["data"]["pod.main.worker.json"]
    assert [obj["metadata"]["name"] for obj in found if obj["kind"] == "ServiceAccount"] == ["wide-bobok-driver"]
