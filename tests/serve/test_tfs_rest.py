"""TensorFlow Serving's REST, asked over a socket."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import numpy as np
import pytest

from tests.serve import making
from tests.serve.serving import Serving

ROWS = np.random.default_rng(0).random((3, 784), dtype=np.float32)


def test_rows_are_answered_in_rows(server: Serving) -> None:
    found = server.predict("mnist", ROWS.tolist())
    np.testing.assert_allclose(found, making.expected(0, ROWS), rtol=1e-4)


def test_named_rows_and_columns_give_the_same(server: Serving) -> None:
    rows = server.predict("mnist", [{"x": row} for row in ROWS.tolist()])
    for inputs in (ROWS.tolist(), {"x": ROWS.tolist()}):
        answer = server.post("/v1/models/mnist:predict", {"inputs": inputs, "signature_name": "serving_default"})
        np.testing.assert_allclose(answer.json["outputs"], rows, rtol=1e-6)


def test_several_inputs_and_outputs_travel_by_name(server: Serving) -> None:
    rows = server.predict("table", [{"a": 1, "b": [1, 2, 3]}, {"b": [0, 0, 1], "a": 2.5}])
    assert rows == [{"total": 7.0, "twice": 2.0}, {"total": 3.5, "twice": 5.0}]
    answer = server.post("/v1/models/table:predict", {"inputs": {"a": [1, 2.5], "b": [[1, 2, 3], [0, 0, 1]]}})
    assert answer.json == {"outputs": {"total": [7.0, 3.5], "twice": [2.0, 5.0]}}


def test_strings_may_come_as_base64(server: Serving) -> None:
    coded = {"b64": base64.b64encode("good göod".encode()).decode()}
    first, second = server.predict("words", [coded, "bad"])
    assert (first["label"], second["label"]) == ("good", "bad")
    assert math.isclose(sum(first["probability"]), 1, rel_tol=1e-6)


def test_what_is_not_finite_is_told_as_tensorflow_serving_tells_it(server: Serving) -> None:
    answer = server.post("/v1/models/logarithm:predict", b'{"instances": [[1, 0], [-1, Infinity], [NaN, 1]]}')
    assert answer.body == b'{"predictions":[[0.0,-Infinity],[NaN,Infinity],[NaN,0.0]]}'


def test_classify_names_every_class(server: Serving) -> None:
    answer = server.post("/v1/models/mnist:classify", {"examples": [{"x": ROWS[0].tolist()}]})
    (row,) = answer.json["result"]
    assert [label for label, _ in row] == list(making.DIGITS)
    np.testing.assert_allclose([score for _, score in row], making.expected(0, ROWS[:1])[0], rtol=1e-4)


def test_a_context_is_common_to_all_examples(server: Serving) -> None:
    answer = server.post("/v1/models/table:regress", {"context": {"b": [1, 1, 1]}, "examples": [{"a": 1}, {"a": 2}]})
    assert answer.json == {"result": [4.0, 5.0]}


def test_regress_refuses_a_model_of_many_numbers(server: Serving) -> None:
    answer = server.post("/v1/models/mnist:regress", {"examples": [{"x": ROWS[0].tolist()}]})
    assert (answer.status, answer.error) == (400, "model 'mnist' returns 10 numbers per row, not one")


def test_explain_says_which_words_weighed(server: Serving) -> None:
    answer = server.post("/v1/models/words:explain", {"instances": ["a good film", "meh"]})
    assert answer.json == {"explanations": [[["good", 1.0]], []]}
    assert server.post("/v1/models/words/versions/1:explain", {"inputs": ["a good film", "meh"]}).json == answer.json
    refused = server.post("/v1/models/mnist:explain", {"instances": ROWS.tolist()})
    assert (refused.status, refused.error) == (400, "model 'mnist' does not support explain")


@pytest.mark.parametrize("method", ["predict", "explain"])
@pytest.mark.parametrize(
    ("body", "headers", "error"),
    [
        ({"instances": ["kaboom"]}, {}, (400, "model 'words' rejected this input: kaboom is not a word")),
        ({}, {}, (400, "Missing 'inputs' or 'instances' key")),
        (
            {"instances": ["x"]},
            {"X-Request-Timeout-Ms": "0.000001"},
            (504, "the deadline passed while the request was queued"),
        ),
    ],
)
def test_predict_and_explain_refuse_alike(
    server: Serving, method: str, body: dict[str, Any], headers: dict[str, str], error: tuple[int, str]
) -> None:
    answer = server.post(f"/v1/models/words:{method}", body, headers)
    assert (answer.status, answer.error) == error


def test_status_and_metadata_are_those_of_tensorflow_serving(server: Serving) -> None:
    (status,) = server.get("/v1/models/mnist").json["model_version_status"]
    assert status == {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    assert server.get("/v1/models/mnist/versions/1").json == server.get("/v1/models/mnist").json
    told = server.get("/v1/models/table/versions/1/metadata").json
    assert told["model_spec"] == {"name": "table", "signature_name": "", "version": "1"}
    ends = told["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert ends["inputs"]["b"]["dtype"] == "DT_INT64"
    assert [dim["size"] for dim in ends["inputs"]["b"]["tensor_shape"]["dim"]] == ["-1", "3"]
    assert ends["method_name"] == "tensorflow/serving/predict"


ZEROS = [0] * 784
REFUSED: list[tuple[str, str, Any, int, str]] = [
    ("a wrong shape", "mnist", {"instances": [[1, 2, 3]]}, 400, "input 'x' expects the shape [*, 784], got [1, 3]"),
    ("no batch", "mnist", {"instances": ZEROS}, 400, "input 'x' expects the shape [*, 784], got [784]"),
    ("ragged rows", "mnist", {"instances": [ZEROS, [0]]}, 400, "input 'x' is ragged"),
    ("no rows", "mnist", {"instances": []}, 400, "'instances' is empty"),
    ("no columns", "mnist", {"inputs": []}, 400, "got [0]"),
    ("strings for numbers", "mnist", {"instances": [["0"] * 784]}, 400, "input 'x' expects float32, got strings"),
    ("null", "mnist", {"instances": [[None] * 784]}, 400, "input 'x' expects float32, got a value that is not"),
    ("true", "mnist", {"instances": [[True] * 784]}, 400, "input 'x' expects float32, got true or false"),
    ("a fraction", "table", {"instances": [{"a": 1, "b": [1, 2, 0.5]}]}, 400, "'b' expects int64, got fractions"),
    ("a number too large", "table", {"instances": [{"a": 1, "b": [1, 2, 10**30]}]}, 400, "'b' expects int64"),
    ("a missing input", "table", {"instances": [{"a": 1}]}, 400, "lacks 'b'; the model's inputs: a, b"),
    ("an unknown input", "table", {"inputs": {"a": [1], "b": [[1, 2, 3]], "c": 1}}, 400, "has unknown 'c'"),
    ("instances that differ", "table", {"instances": [{"a": 1, "b": [1, 2, 3]}, {"a": 1}]}, 400, "instance 1"),
    ("columns that differ", "table", {"inputs": {"a": [1], "b": [[1, 2, 3]] * 2}}, 400, "a has 1, b has 2"),
    ("numbers for strings", "words", {"instances": [1]}, 400, "input 'text' expects strings, got a number"),
    ("broken base64", "words", {"instances": [{"b64": "*"}]}, 400, "the b64 value is not valid base64"),
    ("no UTF-8", "words", {"instances": [{"b64": "/w=="}]}, 400, "expects UTF-8 text: byte 0 is not"),
    ("what the transform refuses", "words", {"instances": ["kaboom"]}, 400, "kaboom is not a word"),
    ("an unknown signature", "mnist", {"signature_name": "x", "instances": []}, 400, "Serving signature key"),
    ("neither key", "mnist", {"rows": []}, 400, "Missing 'inputs' or 'instances' key"),
    ("both keys", "mnist", {"inputs": [], "instances": []}, 400, "both 'instances' and 'inputs'"),
    ("no object", "mnist", [1], 400, "must be a JSON object"),
    ("no JSON", "mnist", b"{nope", 400, "JSON Parse error"),
    ("an empty body", "mnist", b"", 400, "JSON Parse error"),
    ("an unknown model", "nobody", {"instances": [1]}, 404, "Servable not found for request: Latest(nobody)"),
    ("an unknown version", "mnist/versions/9", {"instances": [1]}, 404, "Specific(mnist, 9); versions here: 1"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "body", "status", "words"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_bad_input_is_refused_in_words(server: Serving, model: str, body: Any, status: int, words: str) -> None:
    answer = server.post(f"/v1/models/{model}:predict", body)
    assert answer.status == status
    assert words in answer.error
    assert list(answer.json) == ["error"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/models/nobody", 404),
        ("GET", "/v1/models/mnist/versions/7", 404),
        ("GET", "/v1/models/mnist:predict", 405),
        ("POST", "/v1/models/mnist:dance", 400),
        ("GET", "/v1/nonsense", 400),
        ("GET", "/nonsense", 404),
        ("DELETE", "/v1/models/mnist", 405),
        ("GET", "/v1/models/%ff", 400),
    ],
)
def test_urls_that_mean_nothing_are_told_apart(server: Serving, method: str, path: str, status: int) -> None:
    answer = server.ask(method, path)
    assert answer.status == status
    assert answer.error


def test_a_batch_with_one_bad_row_fails_alone(server: Serving) -> None:
    """Requests that were computed together do not share their errors."""
    import concurrent.futures

    def ask(word: str) -> int:
        return server.post("/v1/models/words:predict", json.dumps({"instances": [word]}).encode()).status

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        words = ["good", "kaboom"] * 40
        assert list(pool.map(ask, words)) == [200, 400] * 40
