"""Models served from a cluster: Deployments that answer, roll, fail with a reason, and leave nothing."""

from __future__ import annotations

import collections
import http.client
import json
import os
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from longboat import spec
from longboat.engines.kubernetes.port_forward import ready
from longboat.manifests import run_objects
from longboat.manifests.payload import Payload
from longboat.manifests.run_objects import SubmitOptions
from longboat.runtime import bundle
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import ApiError, Manifest
from longboat.runtime.pod.model_servers import filled
from longboat.runtime.pod.model_snapshots import ModelSnapshot
from tests.cluster import addons, places
from tests.cluster.cluster import Cluster
from tests.e2e.jobs import PYTHON
from tests.e2e.place import LONGBOAT, Place
from tests.serve import making

pytestmark = pytest.mark.slow

IMAGE = os.environ.get("LONGBOAT_TEST_SERVE_IMAGE", "longboat.test/serve:1")
ROW = {"instances": [[1, 2, 3, 4]]}
JOB = f"""
name: digits
image: {IMAGE}
params: {{REST: 8601, GRPC: 8600, SEED: "0", TARGET: 0.7, EXPOSE: ClusterIP, RETRIES: 3}}
stages:
  train: {{run: python3 digits.py, env: {{SEED: "${{SEED}}"}}, resources: {{cpu: 0.05, memory: 64Mi}}}}
  ok: {{gate: {{of: train, metric: accuracy, at_least: "${{TARGET}}", retries: "${{RETRIES}}"}}}}
  serve:
    after: ok
    serve: {{model: train, replicas: 2, port: "${{REST}}", grpc_port: "${{GRPC}}", expose: "${{EXPOSE}}"}}
    resources: {{cpu: 0.05, memory: 64Mi}}
  load:
    after: serve
    bench: {{data: $LONGBOAT_INPUT_TRAIN/rows.csv, batch: 4, iterations: 9, warm_up: 2}}
"""
STOCK = """
name: digits
image: PYTHON
stages:
  train: {run: cp -r model $LONGBOAT_OUTPUT_DIR/digits}
  serve:
    serve: {model: train, image: "IMAGE", replicas: 2, autoscale: {max: 4, cpu: 60}, expose: LoadBalancer}
    resources: {cpu: 0.05, memory: 32Mi}
"""
STAND_IN = """
import http.server, json, os, sys, threading
base = next(w for w in sys.argv if w.startswith("--model_base_path=")).partition("=")[2]
found = sorted(os.path.relpath(os.path.join(d, f), "/longboat/models") for d, _, fs in os.walk(base) for f in fs)
print("args", sys.argv[1:], flush=True)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        here = self.path == "/v1/models/digits"
        self.send_response(200 if here else 404)
        self.end_headers()
        self.wfile.write(json.dumps({"files": found}).encode())
grpc = http.server.ThreadingHTTPServer(("", 8500), Answer)  # whoever does not listen there is taken for dead
threading.Thread(target=grpc.serve_forever, daemon=True).start()
http.server.ThreadingHTTPServer(("", 8501), Answer).serve_forever()
"""


@pytest.fixture(scope="module", autouse=True)
def image() -> None:
    """The image with a server's libraries, which only these tests need."""
    if "LONGBOAT_TEST_SERVE_IMAGE" not in os.environ:
        if not os.environ["KUBECONFIG"].startswith(str(places.home())):
            pytest.skip("KUBECONFIG names another cluster: $LONGBOAT_TEST_SERVE_IMAGE names no image of it")
        addons.image(Cluster("test", print), "serve", print)


def ask(url: str, path: str = "", body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(f"{url}/v1/models{path}", data, timeout=30) as answer:
        return json.load(answer)


def there(place: Place) -> tuple[str, ...]:
    return ("--on", "kubernetes", "-n", place.namespace)


@contextmanager
def held(place: Place, run: str, *words: str) -> Iterator[dict[str, str]]:
    """What `longboat url` prints while it holds its ports open."""
    command = [*LONGBOAT, "url", run, "--json", *words, *there(place)]
    environ = {**os.environ, "LONGBOAT_HOME": str(place.home)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            yield json.loads(program.stdout.readline())
        finally:
            program.send_signal(signal.SIGINT)
            assert program.wait(timeout=120) == 130


def servers(place: Place, run: str) -> dict[str, Manifest]:
    """The servers' pods that are there to stay."""
    pods = place.cluster.api.list("Pod", names.selector(run, names.SERVER))
    return {pod["metadata"]["name"]: pod for pod in pods if not pod["metadata"].get("deletionTimestamp")}


def events(place: Place, run: str, ev: str, stage: str = "serve") -> list[dict[str, Any]]:
    return [event for event in place.events(run) if event["ev"] == ev and event.get("stage", stage) == stage]


def test_a_file_trains_serves_and_load_tests_in_pods_and_stop_ends_it(place: Place) -> None:
    job = place.job(JOB, "digits.py")
    said = place.longboat("run", job, *there(place))
    run = said.partition("submitted ")[2].partition(" ")[0]
    assert f"digits answers at http://{run}-serve.{place.namespace}:8601" in said
    assert "asked [1, 2, 3, 4] (labelled c): " in said
    assert said.rstrip().endswith(f"longboat stop {run}")
    (ready,) = events(place, run, "stage.ready")
    assert (ready["version"], len(ready["prediction"])) == (2, 3), "the second attempt met the gate"
    figures = events(place, run, "rank.report", "load")[-1]["points"][-1]
    assert (figures["errors"], figures["accuracy"]) == (0, 1)
    ports = place.cluster.api.get("Service", f"{run}-serve")["spec"]["ports"]
    assert {port["name"]: port["port"] for port in ports} == {"rest": 8601, "grpc": 8600}
    with held(place, run) as told:
        assert ask(told["url"], "/digits:predict", ROW)["predictions"][0] == pytest.approx(ready["prediction"])
        place.longboat("bench", f"grpc://{told['grpc']}/digits", "-d", _rows(place, run), "-n", "4", "-w", "1")

        first, second = servers(place, run)
        place.cluster.api.delete("Pod", first)
        place.cluster.api.delete("Pod", names.driver_pod(run), grace=0)
        place.until(lambda: first not in servers(place, run) and len(servers(place, run)) == 2)
        place.until(lambda: len(events(place, run, "stage.ready")) == 2)
        assert second in servers(place, run), "a driver that comes back leaves servers alone"
        assert ask(told["url"], "/digits:predict", ROW), "a new connection finds a server that is ready"

    status = json.loads(place.longboat("status", run, "--json", *there(place)))
    assert (status["state"], status["code"]) == ("serving", None)
    logs = ("logs", run, "--stage", "serve", *there(place))
    place.until(lambda: place.longboat(*logs).count("ready: http://") >= 3)
    assert place.longboat(*logs).count("ready: http://") == 3, "one of each server, and of one that is gone, too"
    left = json.loads(place.longboat("left", run, "--json", *there(place)))
    assert {"Deployment", "PodDisruptionBudget"} < {row["kind"] for row in left}
    assert f"{run} is serving" in place.longboat("attach", run, *there(place))
    place.longboat("stop", run, *there(place))
    # A ReplicaSet that does not know yet that it is to go may have made another one.
    place.until(lambda: not place.cluster.api.list("Pod", names.selector(run, names.SERVER)))
    assert not place.cluster.api.list("Deployment", names.selector(run))
    last = place.events(run)[-1]
    assert (last["state"], last["code"]) == ("succeeded", 0), "it had done all it had to"
    assert "does not serve" in place.longboat("url", run, *there(place), code=2)
    place.longboat("rm", run)
    place.until(lambda: not place.cluster.left(run))


def _rows(place: Place, run: str) -> Path:
    path = place.directory / "rows.csv"
    path.write_text(place.file(run, "output/train/rows.csv"))
    return path


class Client:
    """Asks all the time from several threads, half of them with a new connection each time. Not without a pause: on a
    small machine the cluster itself would wait for its turn."""

    def __init__(self, url: str) -> None:
        self._host, _, self._port = url.removeprefix("http://").partition(":")
        self.answers: collections.Counter[tuple[float, ...]] = collections.Counter()
        self.wrong: list[str] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(n % 2 == 0,), daemon=True) for n in range(4)]
        for thread in self._threads:
            thread.start()

    def _ask(self, keeps: bool) -> None:
        connection = http.client.HTTPConnection(self._host, int(self._port), timeout=30)
        while not self._over.wait(0.02):
            try:
                connection.request("POST", "/v1/models/digits:predict", json.dumps(ROW))
                answer = connection.getresponse()
                text = answer.read()
                if answer.status == 200:
                    self.answers[tuple(json.loads(text)["predictions"][0])] += 1
                else:
                    self.wrong.append(f"{answer.status} {text[:200]!r}")
            except (OSError, http.client.HTTPException) as error:
                self.wrong.append(repr(error))
                connection.close()
            if not keeps:
                connection.close()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def test_a_new_version_takes_over_without_a_dropped_request_and_a_missed_gate_changes_nothing(place: Place) -> None:
    job = place.job(JOB, "digits.py")
    said = place.longboat("run", job, "--set", "EXPOSE=NodePort", *there(place))
    run = said.partition("submitted ")[2].partition(" ")[0]
    assert "warning: stage serve: anyone who can reach its NodePort" in said
    url = place.longboat("url", run).strip()
    assert f"answers at {url}" in said
    assert ask(url)["models"][0]["versions"] == ["2"]
    client = Client(url)
    try:
        changed = ("--set", "EXPOSE=NodePort", "--set", "SEED=7")
        said = place.longboat("run", job, "--resume", run, *changed)
        place.until(lambda: len(client.answers) == 2)
    finally:
        client.end()
    assert client.wrong == []
    assert ask(url)["models"][0]["versions"] == ["3"], "no number is given twice"
    assert "train  runs: changed: its definition in the job file" in said
    assert "load started attempt 2" in said, "it is another model: it is tested again"

    said = place.longboat("run", job, "--resume", run, *changed, "--set", "TARGET=99", "--set", "RETRIES=0", code=3)
    assert "missed its gate" in said
    assert ask(url)["models"][0]["versions"] == ["3"], "what served before serves on"
    assert len(servers(place, run)) == 2
    assert "had ended; its servers are removed now" in place.longboat("stop", run)
    place.longboat("rm", run)
    place.until(lambda: not place.cluster.left(run))


def test_an_image_without_the_libraries_is_named_with_what_it_lacks(place: Place) -> None:
    job = _with_model(place, STOCK.replace('image: "IMAGE", ', "").replace("PYTHON", PYTHON))
    said = place.longboat("run", job, *there(place), code=1)
    run = said.partition("submitted ")[2].partition(" ")[0]
    told = place.longboat("why", run)
    assert f"the image {PYTHON} lacks what the server needs" in told
    assert "onnxruntime" in told
    assert "`requirements:`" in told
    assert not servers(place, run)


def _with_model(place: Place, text: str) -> Path:
    """A job whose code tree has a model in it, with a SavedModel beside the bundle."""
    job = place.job(text)
    saved = job / "saved"
    (saved / "variables").mkdir(parents=True)
    (saved / "saved_model.pb").write_bytes(b"what TensorFlow would read")
    (saved / "variables" / "variables.index").write_bytes(b"and this")
    bundle.save(job / "model", making.mlp(), kind="image", saved_model=str(saved))
    return job


def test_a_stock_server_gets_the_saved_model_in_its_own_layout(place: Place) -> None:
    command = json.dumps(["python3", "-c", STAND_IN])
    pod = f"    pod: {{spec: {{containers: [{{name: server, command: {command}}}]}}}}\n"
    job = _with_model(place, STOCK.replace("IMAGE", PYTHON).replace("PYTHON", PYTHON) + pod)
    said = place.longboat("run", job, *there(place))
    run = said.partition("submitted ")[2].partition(" ")[0]
    assert "the LoadBalancer has no address yet" in said
    assert "nothing in this cluster seems to create load balancers" in place.longboat("url", run, code=1)
    balancer = {"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}}}
    place.cluster.api.patch("Service", f"{run}-serve", balancer, part="status")
    assert place.longboat("url", run, "--wait").split()[-1] == "http://203.0.113.7:8501"
    assert place.longboat("url", run, "--grpc").strip() == "203.0.113.7:8500"

    nodes = place.cluster.api.get("Service", f"{run}-serve")["spec"]["ports"]
    host = next(iter(servers(place, run).values()))["status"]["hostIP"]
    port = next(port["nodePort"] for port in nodes if port["name"] == "rest")
    files = ask(f"http://{host}:{port}", "/digits")["files"]
    assert {"digits/1/saved_model.pb", "digits/1/variables/variables.index"} <= set(files)
    log = place.longboat("logs", run, "--stage", "serve")
    assert "--port=8500" in log
    assert "--model_base_path=/longboat/models/digits" in log
    scaler = place.cluster.api.get("HorizontalPodAutoscaler", f"{run}-serve")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 4)
    place.until(lambda: len(servers(place, run)) == 2)
    place.longboat("stop", run)


def test_the_cluster_takes_the_objects_of_a_stock_image(place: Place, tmp_path: Path) -> None:
    text = STOCK.replace("IMAGE", "tensorflow/serving:2.19.0").replace("PYTHON", PYTHON)
    (tmp_path / "job.yaml").write_text(text)
    plan = spec.load(
        str(tmp_path), sets={}, environ={}, preset=None, engine="kubernetes", remote=True, env_files=[]
    ).plan()
    root = run_objects.objects(plan, "digits-bobok", Payload(b""), SubmitOptions(log="debug"))[0]
    templates = json.loads(root["data"]["serve.serve.json"])
    made = filled(templates, ModelSnapshot(1, 1, "models/serve/1"), "10.0.0.1", root)
    for obj in made:
        place.cluster.api.apply(obj, dry_run=True)
    assert [obj["kind"] for obj in made] == ["Service", "Deployment", "PodDisruptionBudget", "HorizontalPodAutoscaler"]


@pytest.mark.addon
def test_servers_that_are_busy_get_company(place: Place) -> None:
    """Where the cluster has a metrics server: python -m tests.cluster add metrics-server."""
    try:
        place.cluster.api.request("GET", "/apis/metrics.k8s.io/v1beta1/nodes")
    except ApiError:
        pytest.skip("this cluster has no metrics server")
    text = JOB.replace("replicas: 2", "replicas: 1, autoscale: {max: 3, cpu: 20}").partition("  load:")[0]
    said = place.longboat("run", place.job(text, "digits.py"), "--set", "EXPOSE=NodePort", *there(place))
    run = said.partition("submitted ")[2].partition(" ")[0]
    client = Client(place.longboat("url", run).strip())
    try:
        place.until(lambda: len(servers(place, run)) > 1)
        place.until(lambda: all(ready(pod) for pod in servers(place, run).values()))
    finally:
        client.end()
    assert client.wrong == []
    place.longboat("stop", run)
