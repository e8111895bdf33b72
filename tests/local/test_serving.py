"""Train, gate, serve, load-test: one job file, real servers and clients."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.local.place import Place, until
from tests.ports import free_port

TRAIN = """
import os, sys, numpy as np, longboat
from onnx import TensorProto, helper, numpy_helper
W = np.random.default_rng(0).normal(size=(4, 3)).astype("f")
nodes = [helper.make_node("MatMul", ["x", "W"], ["s"]), helper.make_node("Softmax", ["s"], ["scores"])]
inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])]
outputs = [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 3])]
graph = helper.make_graph(nodes, "model", inputs, outputs, [numpy_helper.from_array(W, "W")])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
out, tried = os.environ["LONGBOAT_OUTPUT_DIR"], int(os.environ["LONGBOAT_ATTEMPT"])
example = longboat.bundle.Example({"x": [1.0, 2.0, 3.0, 4.0]}, "c")
longboat.bundle.save(out + "/digits", model, kind="table", labels="abc", examples=[example])
rows = np.random.default_rng(1).normal(size=(10, 4))
with open(out + "/rows.csv", "w") as file:
    file.write("label,a,b,c,d\\n")
    for row, label in zip(rows, (rows @ W).argmax(1)):
        file.write(",".join(map(str, [label, *row])) + "\\n")
longboat.report(step=tried, accuracy=0.4 * tried)
"""

JOB = """
params: {{REST: {rest}, GRPC: {grpc}}}
stages:
  train: {{run: python train.py}}
  ok: {{gate: {{of: train, metric: accuracy, at_least: 0.7, retries: 3}}}}
  serve: {{after: ok, serve: {{model: train, name: digits, port: "${{REST}}", grpc_port: "${{GRPC}}"}}}}
  load:
    after: serve
    bench: {{data: $LONGBOAT_INPUT_TRAIN/rows.csv, batch: 4, iterations: 9, warm_up: 2, protocol: {protocol}}}
"""


@pytest.fixture
def ports() -> dict[str, int]:
    return {"rest": free_port(), "grpc": free_port()}


def ask(port: int, path: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data, timeout=30) as answer:
        return json.load(answer)


def starts(longboat: Place) -> list[dict[str, Any]]:
    return [event for event in longboat.events("rank.started") if event["stage"] == "serve"]


@pytest.mark.parametrize("protocol", ["rest", "grpc", "v2"])
def test_one_file_trains_until_good_enough_serves_and_load_tests(
    longboat: Place, ports: dict[str, int], protocol: str
) -> None:
    said = longboat.run(JOB.format(protocol=protocol, **ports), train=TRAIN)
    assert said.code == 0, said.err
    states = {event["stage"]: event["state"] for event in longboat.events("stage.ended")}
    assert states == dict.fromkeys(("train", "ok", "serve", "load"), "succeeded")
    (ready,) = longboat.events("stage.ready")
    assert ready["url"] == f"http://127.0.0.1:{ports['rest']}"
    assert len(ready["prediction"]) == 3
    assert (longboat.dir / "output/train/digits/2/bundle.json").is_file(), "the second try met the gate"
    load = next(stage for stage in longboat.status()["stages"] if stage["name"] == "load")
    assert (load["metrics"]["accuracy"], load["metrics"]["errors"]) == (1, 0)
    assert "<html" in (longboat.dir / "output/load/report.html").read_text()
    assert f"digits answered at http://127.0.0.1:{ports['rest']}" in said.err
    assert f"longboat serve {longboat.id}" in said.err
    with pytest.raises(OSError, match="refused"):
        ask(ports["rest"], "/v1/models/digits")


def test_a_server_before_a_gate_that_is_missed_ends_and_the_next_model_is_asked(
    longboat: Place, ports: dict[str, int]
) -> None:
    job = """
    stages:
      train: {{run: python train.py}}
      serve: {{serve: {{model: train, name: digits, port: {rest}, grpc_port: {grpc}}}}}
      load: {{after: serve, bench: {{data: $LONGBOAT_INPUT_TRAIN/rows.csv, batch: 4, iterations: 2, warm_up: 1}}}}
      ok: {{after: load, gate: {{of: train, metric: accuracy, at_least: 0.7, retries: 1}}}}
    """
    said = longboat.run(job.format(**ports), train=TRAIN)
    assert said.code == 0, said.err
    told = [(e["ev"], e.get("attempt"), e.get("state")) for e in longboat.events() if e.get("stage") == "serve"]
    assert [each for each in told if each[0] in ("stage.started", "stage.ready", "stage.ended")] == [
        ("stage.started", 1, None),
        ("stage.ready", None, None),
        ("stage.ended", None, "stopped"),
        ("stage.started", 2, None),
        ("stage.ready", None, None),
        ("stage.ended", None, "succeeded"),
    ]
    assert [stage["state"] for stage in longboat.status()["stages"]] == ["succeeded"] * 4


def test_a_token_is_asked_of_clients_and_the_load_test_has_it(
    longboat: Place, ports: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "hush")
    job = JOB.format(protocol="rest", **ports).replace("name: digits,", "name: digits, token: API_KEY,")
    longboat.job("secrets: {API_KEY: {env: KEY}}" + job, train=TRAIN)
    assert longboat("run", "--detach").code == 0
    assert longboat("wait").code == 0
    (ready,) = longboat.events("stage.ready")
    assert len(ready["prediction"]) == 3
    with pytest.raises(urllib.error.HTTPError, match="401"):
        ask(ports["rest"], "/v1/models/digits")
    assert longboat("url").out.strip() == f"http://127.0.0.1:{ports['rest']}"
    assert longboat("url", "--grpc").out.strip() == f"127.0.0.1:{ports['grpc']}"
    assert longboat("stop").code == 0
    assert longboat("url").code == 2


def test_a_run_that_is_kept_serves_until_it_is_stopped(longboat: Place, ports: dict[str, int]) -> None:
    longboat.job(JOB.format(protocol="rest", **ports), train=TRAIN)
    assert longboat("run", "--detach").code == 0
    assert longboat("wait").code == 0
    status = longboat.status()
    assert (status["state"], status["code"]) == ("serving", None)
    answer = ask(ports["rest"], "/v1/models/digits:predict", {"instances": [[1, 2, 3, 4]]})
    assert len(answer["predictions"][0]) == 3
    assert longboat("stop").code == 0
    assert longboat.status()["state"] == "succeeded"


def test_a_killed_server_is_started_again(longboat: Place, ports: dict[str, int]) -> None:
    job = JOB.format(protocol="rest", **ports).replace("at_least: 0.7", "at_least: 0.1")
    longboat.job(job, train=TRAIN)
    longboat("run", "--detach")
    assert longboat("wait").code == 0
    (first,) = starts(longboat)
    os.kill(first["pid"], signal.SIGKILL)
    until(lambda: len(starts(longboat)) == 2, "a second start")

    def answers() -> bool:
        try:
            return bool(ask(ports["rest"], "/v1/models/digits"))
        except OSError:
            return False

    until(answers, "an answer")
    assert longboat("stop").code == 0


def test_ctrl_c_ends_a_kept_server_in_good_order(longboat: Place, ports: dict[str, int]) -> None:
    run = longboat.start(JOB.format(protocol="rest", **ports), "--keep", train=TRAIN)
    until(lambda: longboat.events("run.serving"), "serving")
    run.signal(signal.SIGINT)
    said = run.said()
    assert said.code == 0, said.err
    assert f"page: http://127.0.0.1:{ports['rest']}/models/digits" in said.err


def test_a_taken_port_is_found_before_anything_is_trained(longboat: Place, ports: dict[str, int]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", ports["rest"]))
        taken.listen()
        said = longboat.run(JOB.format(protocol="rest", **ports), train=TRAIN)
    assert said.code == 2
    assert f"stage serve: cannot listen on port {ports['rest']}" in said.err
    assert longboat.runs == []


def test_only_the_load_test_starts_the_server_that_it_needs(longboat: Place, ports: dict[str, int]) -> None:
    assert longboat.run(JOB.format(protocol="rest", **ports), train=TRAIN).code == 0
    said = longboat("run", "--resume", "demo", "--only", "load")
    assert said.code == 0, said.err
    last = [e["stage"] for e in longboat.events("stage.started")][-2:]
    assert last == ["serve", "load"]
