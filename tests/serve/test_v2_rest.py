"""The Open Inference Protocol over REST, JSON and binary."""

from __future__ import annotations

import gzip
import json
from typing import Any

import numpy as np
import pytest

from tests.serve import making
from tests.serve.serving import Serving

ROWS = np.random.default_rng(0).random((3, 784), dtype=np.float32)


def infer(server: Serving, model: str, told: dict[str, Any], tail: bytes = b"", **headers: str) -> Any:
    head = json.dumps(told).encode()
    if tail:
        headers["Inference-Header-Content-Length"] = str(len(head))
    return server.post(f"/v2/models/{model}/infer", head + tail, headers)


def x(**more: Any) -> dict[str, Any]:
    return {"name": "x", "shape": [3, 784], "datatype": "FP32", **more}


def test_health_and_metadata(server: Serving) -> None:
    assert server.get("/v2/health/live").status == server.get("/v2/health/ready").status == 200
    assert server.get("/v2").json["extensions"] == ["binary_tensor_data", "model_repository"]
    assert server.get("/v2/models/mnist/ready").status == server.get("/v2/models/mnist/versions/1/ready").status == 200
    assert server.get("/v2/models/nobody/ready").status == 404
    told = server.get("/v2/models/table").json
    assert told["inputs"][1] == {"name": "b", "datatype": "INT64", "shape": [-1, 3]}
    assert told["versions"] == ["1"]


@pytest.mark.parametrize("data", [ROWS.tolist(), ROWS.ravel().tolist()], ids=["nested", "flat"])
def test_numbers_as_json(server: Serving, data: Any) -> None:
    answer = infer(server, "mnist", {"id": "seven", "inputs": [x(data=data)]})
    told = answer.json
    assert (told["model_name"], told["model_version"], told["id"]) == ("mnist", "1", "seven")
    (output,) = told["outputs"]
    assert (output["shape"], output["datatype"]) == ([3, 10], "FP32")
    np.testing.assert_allclose(output["data"], making.expected(0, ROWS).ravel(), rtol=1e-4)


def test_numbers_as_bytes_both_ways(server: Serving) -> None:
    wanted = [{"name": "probabilities", "parameters": {"binary_data": True}}]
    told = {"inputs": [x(parameters={"binary_data_size": ROWS.nbytes})], "outputs": wanted}
    answer = infer(server, "mnist", told, ROWS.tobytes())
    length = int(answer.headers["inference-header-content-length"])
    head = json.loads(answer.body[:length])
    assert head["outputs"][0]["parameters"] == {"binary_data_size": 120}
    np.testing.assert_allclose(
        np.frombuffer(answer.body[length:], np.float32).reshape(3, 10), making.expected(0, ROWS), rtol=1e-4
    )


def test_two_tensors_behind_one_header_and_one_output_of_two(server: Serving) -> None:
    a, b = np.array([1, 2.5], np.float32), np.array([[1, 2, 3], [0, 0, 1]], np.int64)
    inputs = [
        {"name": "b", "shape": [2, 3], "datatype": "INT64", "parameters": {"binary_data_size": b.nbytes}},
        {"name": "a", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": a.nbytes}},
    ]
    answer = infer(server, "table", {"inputs": inputs, "outputs": [{"name": "total"}]}, b.tobytes() + a.tobytes())
    assert [(o["name"], o["data"]) for o in answer.json["outputs"]] == [("total", [7.0, 3.5])]


def test_strings_as_bytes(server: Serving) -> None:
    texts = [b"good", "bäd bad".encode()]
    tail = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    told = {
        "inputs": [{"name": "text", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": len(tail)}}],
        "parameters": {"binary_data_output": True},
    }
    answer = infer(server, "words", told, tail)
    length = int(answer.headers["inference-header-content-length"])
    assert answer.body[length:].endswith(b"\4\0\0\0good\3\0\0\0bad")


def test_a_body_may_be_packed(server: Serving) -> None:
    packed = gzip.compress(json.dumps({"inputs": [x(data=ROWS.tolist())]}).encode())
    answer = server.post("/v2/models/mnist/infer", packed, {"Content-Encoding": "gzip"})
    assert answer.status == 200
    assert server.post("/v2/models/mnist/infer", packed[:-9], {"Content-Encoding": "gzip"}).status == 400
    assert server.post("/v2/models/mnist/infer", b"junk", {"Content-Encoding": "gzip"}).status == 400
    assert server.post("/v2/models/mnist/infer", packed, {"Content-Encoding": "br"}).status == 415


def test_the_repository_lists_versions(server: Serving) -> None:
    found = server.post("/v2/repository/index", {}).json
    assert {"name": "mnist", "version": "1", "state": "READY", "reason": ""} in found


REFUSED: list[tuple[str, dict[str, Any], bytes, str]] = [
    ("a wrong datatype", {"inputs": [x(datatype="FP64", data=[0])]}, b"", "expects the datatype FP32, got 'FP64'"),
    ("a wrong shape", {"inputs": [x(shape=[3, 5], data=[0])]}, b"", "expects the shape [*, 784], got [3, 5]"),
    ("an empty batch", {"inputs": [x(shape=[0, 784], data=[])]}, b"", "has no rows"),
    ("a shape that is none", {"inputs": [x(shape="3", data=[])]}, b"", "'shape' must be a list"),
    ("a negative length", {"inputs": [x(shape=[-1, 784], data=[])]}, b"", "'shape' must be a list"),
    ("too few values", {"inputs": [x(data=[0] * 9)]}, b"", "holds 2352 values, 'data' has 9"),
    ("no data", {"inputs": [x()]}, b"", "has no 'data'"),
    ("another name", {"inputs": [{"name": "y"}]}, b"", "lacks 'x' and has unknown 'y'"),
    ("one twice", {"inputs": [x(data=ROWS.tolist()), x(data=ROWS.tolist())]}, b"", "duplicate input"),
    ("no inputs", {}, b"", "a list of 'inputs'"),
    ("an unknown output", {"inputs": [], "outputs": [{"name": "z"}]}, b"", "has no output 'z'"),
    ("too few bytes", {"inputs": [x(parameters={"binary_data_size": 4})]}, b"abcd", "is 9408 bytes, got 4"),
    ("bytes left over", {"inputs": [x(data=ROWS.tolist())]}, b"abcd", "4 bytes follow the last tensor"),
    ("more bytes said than sent", {"inputs": [x(parameters={"binary_data_size": 99})]}, b"abcd", "4 bytes are left"),
]


@pytest.mark.parametrize(("told", "tail", "words"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_bad_input_is_refused_in_words(server: Serving, told: dict[str, Any], tail: bytes, words: str) -> None:
    answer = infer(server, "mnist", told, tail)
    assert answer.status == 400
    assert words in answer.error


@pytest.mark.parametrize("length", ["-1", "99999999", "x", "9" * 30])
def test_a_header_length_that_cannot_be_is_refused(server: Serving, length: str) -> None:
    answer = server.post("/v2/models/mnist/infer", b"{}", {"Inference-Header-Content-Length": length})
    assert answer.status == 400
