"""The objects of a stage that serves: compared with a file that a person has read, and what they promise."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from longboat import spec
from longboat.manifests import model_serving, run_objects, tensorboard_pod, yaml_text
from longboat.manifests.payload import Payload, load, whole
from longboat.manifests.run_objects import SubmitOptions
from longboat.runtime import debug_log
from longboat.runtime.errors import LongboatError
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import Manifest
from longboat.runtime.plan import Plan
from longboat.runtime.pod.model_servers import filled
from longboat.runtime.pod.model_snapshots import ModelSnapshot

GOLDEN = Path(__file__).with_name("golden-serving.yaml")
JOB = """
name: wide
image: registry.example/wide:1
params: {TF_SERVING_PORT: 9501}
secrets: {API_TOKEN: {env: TOKEN}}
security: {user: 2000}
stages:
  train: {run: python train.py}
  serve:
    serve:
      {model: train, replicas: 3, port: "${TF_SERVING_PORT}", expose: NodePort,
       token: API_TOKEN, autoscale: {max: 6, cpu: 80}}
    resources: {cpu: 0.5, memory: 1Gi}
    grace: 20s
  load: {after: serve, bench: {data: rows.csv, protocol: rest}}
"""
STOCK = """
name: wide
image: registry.example/wide:1
stages:
  main: {run: python train.py}
  serve: {serve: {model: main, image: "tensorflow/serving:2.19.0", grpc_port: 9500}}
"""


def planned(directory: Path, job: str = JOB) -> Plan:
    (directory / "job.yaml").write_text(job)
    environ = {"TOKEN": "secret"}
    return spec.load(
        str(directory), sets={}, environ=environ, preset=None, engine="kubernetes", remote=True, env_files=[]
    ).plan()


def root(plan: Plan, cargo: Payload = Payload(b"zipapp")) -> dict[str, str]:  # noqa: B008
    found: dict[str, str] = run_objects.objects(plan, "wide-bobok", cargo, SubmitOptions())[0]["data"]
    return found


def served(plan: Plan) -> dict[str, Manifest]:
    return {obj["kind"]: obj for obj in json.loads(root(plan)["serve.serve.json"])}


def container(deployment: Manifest, name: str = names.SERVER) -> Manifest:
    pod = deployment["spec"]["template"]["spec"]
    return next(each for each in (*pod["initContainers"], *pod["containers"]) if each["name"] == name)


def test_the_objects_of_a_served_model_are_those_of_the_golden_file(tmp_path: Path) -> None:
    written = yaml_text.yaml_of(json.loads(root(planned(tmp_path))["serve.serve.json"]))
    if os.environ.get("LONGBOAT_WRITE_GOLDEN"):
        GOLDEN.write_text(written)
    assert written == GOLDEN.read_text(), "if this is meant: LONGBOAT_WRITE_GOLDEN=1, then read the difference"


def test_the_params_port_reaches_server_probe_service_and_load_test(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    made = served(plan)
    server = container(made["Deployment"])
    assert "--port 9501 --grpc-port 8500" in " ".join(server["command"])
    assert server["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": 9501}
    assert {p["name"]: p["port"] for p in made["Service"]["spec"]["ports"]} == {"rest": 9501, "grpc": 8500}
    client = json.loads(root(plan)["pod.load.client.json"])["spec"]["containers"][0]
    assert {"name": "LONGBOAT_SERVER", "value": "wide-bobok-serve"} in client["env"]
    assert "http://$LONGBOAT_SERVER:9501/v1/models/wide" in plan.stage("load").roles[0].command[2]


def test_the_server_holds_no_token_of_the_run_and_only_its_fetcher_does(tmp_path: Path) -> None:
    made = served(planned(tmp_path))["Deployment"]
    assert names.TOKEN not in {mount["mountPath"] for mount in container(made)["volumeMounts"]}
    assert names.TOKEN in {mount["mountPath"] for mount in container(made, names.FETCHER)["volumeMounts"]}
    assert made["spec"]["template"]["spec"]["automountServiceAccountToken"] is False


def test_a_stock_server_keeps_its_program_and_gets_tf_servings_options(tmp_path: Path) -> None:
    plan = planned(tmp_path, STOCK)
    made = served(plan)
    server = container(made["Deployment"])
    assert "command" not in server
    assert server["args"] == [
        "--port=9500", "--rest_api_port=8501", "--model_name=wide", "--model_base_path=/longboat/models/wide"
    ]  # fmt: skip
    assert server["readinessProbe"]["httpGet"]["path"] == "/v1/models/wide"
    assert container(made["Deployment"], names.FETCHER)["image"] == "registry.example/wide:1"
    assert "PodDisruptionBudget" not in made, "one server cannot be kept up by forbidding its end"
    assert not whole(plan), "nothing in these pods needs more of Longboat"


def test_what_is_known_only_when_its_turn_comes_is_filled_in(tmp_path: Path) -> None:
    templates = json.loads(root(planned(tmp_path))["serve.serve.json"])
    quiet = {"metadata": {"name": "wide-bobok"}}
    made = filled(templates, ModelSnapshot(4, 2, "models/serve/4"), "10.0.0.1", quiet)
    deployment = next(obj for obj in made if obj["kind"] == "Deployment")
    env = {each["name"]: each.get("value") for each in container(deployment, names.FETCHER)["env"]}
    assert (env["LONGBOAT_MODEL"], env["LONGBOAT_DEPOT"]) == ("models/serve/4", "10.0.0.1:7078")
    assert deployment["spec"]["template"]["metadata"]["annotations"][names.MODEL] == "4"
    assert debug_log.VARIABLE not in {each["name"] for each in container(deployment)["env"]}
    logging = {"metadata": {"name": "wide-bobok", "annotations": {names.LOG: "info"}}}
    deployment = filled(templates, ModelSnapshot(4, 2, "models/serve/4"), "10.0.0.1", logging)[1]
    assert {"name": debug_log.VARIABLE, "value": "info"} in container(deployment)["env"]
    again = filled(templates, ModelSnapshot(4, 2, "models/serve/4"), "10.0.0.1", quiet)
    assert again == made, "the template is not changed"


def test_an_autoscaled_deployment_leaves_the_number_of_servers_to_the_autoscaler(tmp_path: Path) -> None:
    made = served(planned(tmp_path))
    assert "replicas" not in made["Deployment"]["spec"]
    scaler = made["HorizontalPodAutoscaler"]["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (3, 6)


def test_only_a_driver_that_serves_may_touch_deployments(tmp_path: Path) -> None:
    plain = planned(tmp_path, "name: wide\nimage: i\nrun: a\n")
    told = {
        resource for rule in run_objects.rules("r", run_objects.served(plain, "r")) for resource in rule["resources"]
    }
    assert "deployments" not in told
    rules = run_objects.rules("wide-bobok", run_objects.served(planned(tmp_path), "wide-bobok"))
    changing = [rule for rule in rules if rule["resources"] == ["deployments"] and "delete" in rule["verbs"]]
    assert [rule["resourceNames"] for rule in changing] == [["wide-bobok-serve"]]


def test_what_others_can_reach_without_a_login_is_warned_of(tmp_path: Path) -> None:
    assert model_serving.warnings(planned(tmp_path)) == [], "a token is asked for"
    (warning,) = model_serving.warnings(planned(tmp_path, JOB.replace("token: API_TOKEN, ", "")))
    assert "anyone who can reach its NodePort can use the model" in warning
    assert model_serving.warnings(planned(tmp_path, STOCK)) == [], "a ClusterIP is not public"


def test_a_run_that_goes_on_brings_its_cargo_under_other_names(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    plan = planned(tmp_path)
    first, again = load(plan), load(plan, edition=True)
    assert whole(plan)
    assert b"longboat/serve/server.py" in first.archive, "a server's image need not have Longboat"
    data = root(plan, again)
    sources = json.loads(data["pod.train.worker.json"])["spec"]["volumes"][3]["projected"]["sources"]
    assert [source["configMap"]["name"] for source in sources] == [
        f"wide-bobok-ship-{again.edition}", "wide-bobok", f"wide-bobok-code-{again.edition}-0"
    ]  # fmt: skip
    assert "train.py" in data["fingerprints.json"]


def test_names_that_no_service_may_have_are_cut_and_stay_apart() -> None:
    long = names.service("a" * 40 + "-bobok", "b" * 40)
    assert len(long) <= 63
    assert long != names.service("a" * 40 + "-bobok", "b" * 39 + "c")
    assert names.service("wide-bobok", "driver") != names.driver("wide-bobok")


def test_no_image_at_all_is_refused_with_a_fix(tmp_path: Path) -> None:
    with pytest.raises(LongboatError, match="no image; a cluster needs one") as error:
        root(planned(tmp_path, JOB.replace("image: registry.example/wide:1", "")))
    assert error.value.hint


def test_a_board_is_a_deployment_and_a_service_of_the_run_and_public_only_on_purpose(tmp_path: Path) -> None:
    job = "name: wide\nimage: i\nrun: a\nparams: {TB_PORT: 6006}\nboard: {image: 'tb:1', port: '${TB_PORT}'}\n"
    plan = planned(tmp_path, job)
    made = {obj["kind"]: obj for obj in run_objects.objects(plan, "wide-bobok", Payload(b""), SubmitOptions())[-2:]}
    (port,) = made["Service"]["spec"]["ports"]
    assert (made["Service"]["spec"]["type"], port["port"]) == ("ClusterIP", 6006)
    viewer, files = made["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert (viewer["image"], files["image"]) == ("tb:1", "i")
    assert names.TOKEN not in {mount["mountPath"] for mount in viewer["volumeMounts"]}
    assert tensorboard_pod.warnings(plan) == []
    open_ = planned(tmp_path, job.replace("image: 'tb:1'", "expose: LoadBalancer"))
    assert "no login" in tensorboard_pod.warnings(open_)[0]
