"""The objects of a run: compared with a file that a person has read, and pure."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import pytest
import yaml

from longboat import spec
from longboat.manifests import payload, run_objects, yaml_text
from longboat.manifests.payload import Payload
from longboat.manifests.run_objects import SubmitOptions
from longboat.runtime import debug_log
from longboat.runtime.errors import LongboatError
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import Manifest
from longboat.runtime.plan import Plan, from_json
from longboat.runtime.pod import pod_templates
from longboat.runtime.seat import Seat

GOLDEN = Path(__file__).with_name("golden.yaml")
JOB = """
name: wide
image: registry.example/wide:1
pull_secrets: [robot]
secrets: {API_KEY: {env: API_KEY}, TOKEN: {secret: shared, key: token}}
storage:
  data: {pvc: samples, read_only: true}
  scratch: {emptyDir: {}}
security: {user: 2000, group: 3000, fs_group: 4000, service_account: trainer}
stages:
  train:
    run: python train.py
    shape: ps
    ranks: {chief: 1, worker: 2, ps: {count: 1, resources: {memory: 2Gi}}}
    resources: {cpu: 1.5, memory: 4Gi, gpu: 1, limits: {memory: 8Gi}}
    grace: 30s
    node_selector: {disk: fast}
    tolerations: [{key: gpu, operator: Exists}]
    topology: kubernetes.io/hostname
    pod: {metadata: {annotations: {team: vision}}, spec: {priorityClassName: low}}
  good:
    gate: {of: train, metric: accuracy, at_least: 0.8}
"""


def planned(directory: Path, job: str = JOB) -> Plan:
    (directory / "job.yaml").write_text(job)
    return spec.load(
        str(directory), sets={}, environ={}, preset=None, engine="kubernetes", remote=True, env_files=[]
    ).plan()


def made(plan: Plan, setting: SubmitOptions = SubmitOptions()) -> list[Manifest]:  # noqa: B008
    return run_objects.objects(plan, "wide-bobok", Payload(b"zipapp", (b"first", b"second"), "abc", 2), setting)


def of(found: list[Manifest], kind: str, name: str) -> Manifest:
    return next(obj for obj in found if (obj["kind"], obj["metadata"]["name"]) == (kind, name))


def test_the_objects_of_a_job_are_those_of_the_golden_file(tmp_path: Path) -> None:
    written = yaml_text.yaml_of(made(planned(tmp_path)))
    if os.environ.get("LONGBOAT_WRITE_GOLDEN"):
        GOLDEN.write_text(written)
    assert written == GOLDEN.read_text(), "if this is meant: LONGBOAT_WRITE_GOLDEN=1, then read the difference"


def test_the_file_holds_the_very_objects(tmp_path: Path) -> None:
    found = made(planned(tmp_path))
    assert list(yaml.safe_load_all(yaml_text.yaml_of(found, "a head"))) == found


def test_no_secret_value_and_no_token_is_in_an_export(tmp_path: Path) -> None:
    found = made(planned(tmp_path))
    assert not [obj for obj in found if obj["kind"] == "Secret"]
    assert "kubectl create secret generic wide-bobok-secrets" in run_objects.head(
        planned(tmp_path), "wide-bobok", Payload(b""), ""
    )


def test_one_selector_lists_all_objects(tmp_path: Path) -> None:
    for obj in made(planned(tmp_path)):
        assert obj["metadata"]["labels"][names.RUN_LABEL] == "wide-bobok"


def test_every_pod_meets_restricted_pod_security(tmp_path: Path) -> None:
    found = made(planned(tmp_path))
    root, driver = of(found, "ConfigMap", "wide-bobok"), of(found, "StatefulSet", "wide-bobok-driver")
    pods = [json.loads(value)["spec"] for key, value in root["data"].items() if key.startswith("pod.")]
    for spec_ in [*pods, driver["spec"]["template"]["spec"]]:
        assert spec_["securityContext"]["runAsNonRoot"] is True
        assert spec_["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec_["containers"]:
            held = container["securityContext"]
            assert (held["allowPrivilegeEscalation"], held["readOnlyRootFilesystem"]) == (False, True)
            assert held["capabilities"] == {"drop": ["ALL"]}
        assert {"emptyDir", "projected", "persistentVolumeClaim", "secret"} >= {
            kind for volume in spec_["volumes"] for kind in volume if kind != "name"
        }


def test_the_plan_in_the_root_is_what_pods_see(tmp_path: Path) -> None:
    plan = from_json(of(made(planned(tmp_path)), "ConfigMap", "wide-bobok")["data"]["plan.json"])
    assert (plan.code, plan.file, plan.engine) == ("/longboat/code", "", "kubernetes")
    assert [mount.path for mount in plan.storage] == ["/longboat/mounts/data", "/longboat/mounts/scratch"]


def test_a_volume_named_run_is_shared_by_all_pods_and_no_claim_is_made(tmp_path: Path) -> None:
    found = made(planned(tmp_path, "name: x\nimage: i\nrun: a\nstorage: {run: {pvc: team}}\n"))
    assert not [obj for obj in found if obj["kind"] == "PersistentVolumeClaim"]
    pod = json.loads(of(found, "ConfigMap", "wide-bobok")["data"]["pod.main.worker.json"])
    mounts = {mount["mountPath"]: mount for mount in pod["spec"]["containers"][0]["volumeMounts"]}
    assert mounts["/longboat/run"]["subPath"] == "longboat/wide-bobok"


def test_a_seat_fills_the_template_in(tmp_path: Path) -> None:
    found = made(planned(tmp_path))
    template = json.loads(of(found, "ConfigMap", "wide-bobok")["data"]["pod.train.worker.json"])
    root = {"metadata": {"name": "wide-bobok", "uid": "u"}}
    pod = pod_templates.pod(template, "name-1", Seat("train", "worker", 1), root, "10.0.0.1", (5, 6, 7))
    env = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
    assert env["LONGBOAT_AGENT_SEAT"] == "train/worker-1"
    assert env["LONGBOAT_AGENT_HOST"] == "train-worker-1.wide-bobok", "its peers go on without it: a name, no address"
    assert env["LONGBOAT_AGENT_PORTS"] == "5,6,7"
    assert pod["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert pod_templates.seat_of(pod["metadata"]["labels"]) == ("train", "worker", 1)
    assert debug_log.VARIABLE not in env
    assert template["spec"].get("hostname") is None, "the template is not changed"


def test_the_level_of_the_debug_log_reaches_the_driver_by_the_root_and_the_agents_by_their_variable(
    tmp_path: Path,
) -> None:
    options = run_objects.submit_options("", {}, {"LONGBOAT_LOG": "Info"})
    root = run_objects.objects(planned(tmp_path), "wide-bobok", Payload(b""), options)[0]
    assert names.log_level(root) == "info"
    root["metadata"]["uid"] = "u"
    template = json.loads(root["data"]["pod.train.worker.json"])
    pod = pod_templates.pod(template, "name-1", Seat("train", "worker", 1), root, "10.0.0.1", ())
    assert {"name": "LONGBOAT_LOG", "value": "info"} in pod["spec"]["containers"][0]["env"]
    assert names.log_level(made(planned(tmp_path))[0]) == ""


@pytest.mark.parametrize(
    ("job", "wrong"),
    [
        ("name: x\nrun: a\n", "no image; a cluster needs one"),
        ("name: x\nimage: i\nrun: a\npod: {hostNetwork: true}\n", "unknown key hostNetwork in `pod`"),
        (
            "name: x\nimage: i\nrun: a\nstorage: {data: {path: ./here, read_only: true}}\n",
            "a directory on this machine",
        ),
    ],
)
def test_what_no_pod_can_be_is_refused_with_a_fix(tmp_path: Path, job: str, wrong: str) -> None:
    with pytest.raises(LongboatError, match=wrong) as error:
        made(planned(tmp_path, job))
    assert error.value.hint


def test_the_code_tree_is_packed_the_same_each_time(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "large").write_text("left out")
    first, second = payload.pack(str(tmp_path), b""), payload.pack(str(tmp_path), b"")
    assert first == second
    with tarfile.open(fileobj=io.BytesIO(b"".join(first.parts))) as archive:
        assert {(entry.name, entry.mode) for entry in archive} == {("run.sh", 0o755), ("train.py", 0o644)}


def test_a_tree_that_is_too_large_names_its_largest_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "PARTS", 1)
    (tmp_path / "weights.bin").write_bytes(os.urandom(1_200_000))
    (tmp_path / "train.py").write_text("print(1)\n")
    with pytest.raises(LongboatError, match=r"weights.bin 1.2 MB") as error:
        payload.pack(str(tmp_path), b"")
    assert ".longboatignore" in error.value.hint


def test_a_tree_is_cut_into_parts_that_a_configmap_holds(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(os.urandom(2_500_000))
    packed = payload.pack(str(tmp_path), b"")
    assert [len(part) <= 1_048_576 for part in packed.parts] == [True] * 3
