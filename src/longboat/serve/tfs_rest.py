"""TensorFlow Serving's REST API: status, metadata, :predict, :classify, :regress; :explain is Longboat's own.

JSON in requests and responses may contain NaN, Infinity and -Infinity, as in TensorFlow Serving, because models return
such numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson

from longboat.runtime.bundle import Bundle, Tensor
from longboat.serve import input_checks
from longboat.serve.batching import Batcher
from longboat.serve.dtypes import BY_NAME
from longboat.serve.http_server import Request
from longboat.serve.model_versions import ModelVersion, ServedModel
from longboat.serve.prediction import HttpPrediction, RequestCounters
from longboat.serve.request_errors import RefusalReason, RequestRefused, invalid

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
    Outputs = dict[str, Array]
    Write = Callable[[Request, Outputs], None]

SIGNATURE = "serving_default"
PREDICT_METHOD = "tensorflow/serving/predict"
_NUMPY = orjson.OPT_SERIALIZE_NUMPY


def loads(body: bytes) -> Any:
    """Parse JSON with NaN and infinities, with the fast strict parser first."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if b"NaN" not in body and b"Infinity" not in body:
            raise invalid(f"JSON Parse error: {error}") from None
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise invalid(f"JSON Parse error: {error}") from None


def dumps(value: Any) -> bytes:
    """Write JSON with NaN and infinities. orjson writes null for them, and nothing else sent from here is null."""
    try:
        encoded = orjson.dumps(value, option=_NUMPY)
        if b"null" not in encoded:
            return encoded
    except TypeError:
        pass
    return json.dumps(value, default=_plain, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        import base64

        return {"b64": base64.b64encode(value).decode()}
    return value.tolist()


def error(message: str) -> bytes:
    return orjson.dumps({"error": message})


def predict(
    find: Callable[[], Batcher], counting: RequestCounters, most: int, write: Write | None = None
) -> Callable[[Request], None]:
    """Handler of one model's :predict. write: what writes the response, if neither rows nor columns are meant."""

    def handle(request: Request) -> None:
        batcher = find()
        batcher.admit()
        body = loads(request.body if b"content-encoding" not in request.headers else request.content(most))
        inputs, columns = read(body, batcher.runner.bundle)
        rows = input_checks.rows_of(inputs) if len(inputs) > 1 else len(next(iter(inputs.values())))
        answer = write or (write_columns if columns else write_rows)
        HttpPrediction(request, batcher, answer, counting).ask(inputs, rows)

    return handle


def read(body: Any, bundle: Bundle) -> tuple[Outputs, bool]:
    """The arrays of a request, and whether it is in column format."""
    if type(body) is not dict:
        raise invalid("the body must be a JSON object with 'instances' or 'inputs'")
    if "signature_name" in body and body["signature_name"] not in (SIGNATURE, ""):
        raise invalid(f'Serving signature key "{body["signature_name"]}" not found.; there is {SIGNATURE!r}')
    if "instances" in body:
        if "inputs" in body:
            raise invalid("the request has both 'instances' and 'inputs': send one of them")
        return _rows(body["instances"], bundle.inputs), False
    if "inputs" in body:
        return _columns(body["inputs"], bundle.inputs), True
    raise invalid("Missing 'inputs' or 'instances' key")


def _rows(instances: Any, wanted: tuple[Tensor, ...]) -> Outputs:
    if type(instances) is not list:
        raise invalid("'instances' must be a list with one entry per row")
    if not instances:
        raise invalid("'instances' is empty: send at least one row")
    first = instances[0]
    if len(wanted) == 1 and not _named(first, wanted):
        return {wanted[0].name: input_checks.column(wanted[0], instances)}
    if type(first) is not dict:
        names = ", ".join(tensor.name for tensor in wanted)
        raise invalid(f"the model has several inputs: each instance must be an object with {names}")
    keys = first.keys()
    for number, instance in enumerate(instances):
        if type(instance) is not dict or instance.keys() != keys:
            raise invalid(f"instance {number} does not have the keys of instance 0: {', '.join(map(str, keys))}")
    input_checks.missing(wanted, list(keys))
    return {t.name: input_checks.column(t, [instance[t.name] for instance in instances]) for t in wanted}


def _columns(inputs: Any, wanted: tuple[Tensor, ...]) -> Outputs:
    if len(wanted) == 1 and not _named(inputs, wanted):
        return {wanted[0].name: input_checks.column(wanted[0], inputs)}
    if type(inputs) is not dict:
        names = ", ".join(tensor.name for tensor in wanted)
        raise invalid(f"the model has several inputs: 'inputs' must be an object with {names}")
    input_checks.missing(wanted, list(inputs))
    return {tensor.name: input_checks.column(tensor, inputs[tensor.name]) for tensor in wanted}


def _named(value: Any, wanted: tuple[Tensor, ...]) -> bool:
    """Whether this is an object of named inputs, not a single value such as {"b64": ...}."""
    return type(value) is dict and not (value.keys() == {"b64"} and wanted[0].name != "b64")


def write_rows(request: Request, outputs: Outputs) -> None:
    if len(outputs) == 1:
        (array,) = outputs.values()
        request.json(dumps({"predictions": sendable(array)}))
        return
    columns = {name: sendable(array) for name, array in outputs.items()}
    rows = len(next(iter(columns.values())))
    predictions = [{name: column[row] for name, column in columns.items()} for row in range(rows)]
    request.json(dumps({"predictions": predictions}))


def write_columns(request: Request, outputs: Outputs) -> None:
    columns = {name: sendable(array) for name, array in outputs.items()}
    request.json(dumps({"outputs": columns if len(columns) > 1 else next(iter(columns.values()))}))


def sendable(array: Array) -> Any:
    """Values for the JSON writer: arrays of numbers as they are, strings and views as lists."""
    if array.dtype.kind == "O" or not array.flags.c_contiguous or array.dtype.byteorder == ">":
        return array.tolist()
    return array


def explain(find: Callable[[], Batcher], counting: RequestCounters, most: int) -> Callable[[Request], None]:
    """Handler of one model's :explain: a prediction by the model's explainer."""

    def find_explainer() -> Batcher:
        batcher = find()
        if batcher.explainer is None:
            raise invalid(f"model {batcher.runner.bundle.name!r} does not support explain")
        return batcher.explainer

    return predict(find_explainer, counting, most, lambda request, outputs: request.json(dumps(outputs)))


def examples(kind: str, find: Callable[[], Batcher], counting: RequestCounters, most: int) -> Callable[[Request], None]:
    """Handler of :classify or :regress."""

    def handle(request: Request) -> None:
        batcher = find()
        bundle = batcher.runner.bundle
        body = loads(request.content(most))
        if type(body) is not dict or type(body.get("examples")) is not list:
            raise invalid("the body must be a JSON object with a list of 'examples'")
        context = body.get("context", {})
        if type(context) is not dict or any(type(example) is not dict for example in body["examples"]):
            raise invalid("'context' and each of 'examples' must be an object of features by name")
        inputs = _rows([{**context, **example} for example in body["examples"]], bundle.inputs)

        def write(request: Request, outputs: Outputs) -> None:
            result: Any = classes(bundle, outputs) if kind == "classify" else values(bundle, outputs)
            request.json(dumps({"result": result}))

        HttpPrediction(request, batcher, write, counting).ask(inputs, input_checks.rows_of(inputs))

    return handle


def classes(bundle: Bundle, outputs: Outputs) -> list[list[tuple[str, float]]]:
    """Label and score of every class, for each row."""
    scores = _scores(bundle, outputs)
    if scores.ndim == 1:
        scores = scores[:, None]
    if scores.ndim != 2:
        raise invalid(f"model {bundle.name!r} returns no class scores")
    rows: list[list[float]] = scores.tolist()
    labels = list(bundle.labels)
    if scores.shape[1] == 1 and len(labels) == 2:
        rows = [[1 - row[0], row[0]] for row in rows]
    elif len(labels) != scores.shape[1]:
        labels = [str(number) for number in range(scores.shape[1])]
    return [list(zip(labels, row, strict=True)) for row in rows]


def values(bundle: Bundle, outputs: Outputs) -> list[float]:
    """One number for each row."""
    scores = _scores(bundle, outputs)
    if scores.size != len(scores):
        raise invalid(f"model {bundle.name!r} returns {scores.size // max(1, len(scores))} numbers per row, not one")
    numbers: list[float] = scores.reshape(-1).tolist()
    return numbers


def _scores(bundle: Bundle, outputs: Outputs) -> Array:
    """The output with scores: one per label, or else the first numeric output."""
    floats = [array for array in outputs.values() if array.dtype.kind == "f"]
    fitting = [array for array in floats if bundle.labels and array.shape[-1] == len(bundle.labels)]
    if not floats:
        raise invalid(f"model {bundle.name!r} returns no numbers to classify or regress with")
    return (fitting or floats)[0]


def status(model: ServedModel, version: int | None) -> bytes:
    versions = [v for v in model.status() if version is None or v.number == version]
    if not versions:
        raise RequestRefused(RefusalReason.NOT_FOUND, f"Could not find version {version} of model {model.name}")
    return orjson.dumps({"model_version_status": [_status(each) for each in versions]})


def _status(version: ModelVersion) -> dict[str, Any]:
    status = {"error_code": "UNKNOWN" if version.error else "OK", "error_message": version.error}
    return {"version": str(version.number), "state": version.state.name, "status": status}


def metadata(bundle: Bundle) -> bytes:
    definition = {
        "inputs": {tensor.name: _info(tensor) for tensor in bundle.inputs},
        "outputs": {tensor.name: _info(tensor) for tensor in bundle.outputs},
        "method_name": PREDICT_METHOD,
    }
    return orjson.dumps(
        {
            "model_spec": {"name": bundle.name, "signature_name": "", "version": str(bundle.version)},
            "metadata": {"signature_def": {"signature_def": {SIGNATURE: definition}}},
        }
    )


def _info(tensor: Tensor) -> dict[str, Any]:
    dims = [{"size": str(-1 if length is None else length), "name": ""} for length in tensor.shape]
    return {
        "dtype": BY_NAME[tensor.dtype].tf_name,
        "tensor_shape": {"dim": dims, "unknown_rank": False},
        "name": f"{tensor.name}:0",
    }
