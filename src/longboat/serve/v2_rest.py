"""Open Inference Protocol v2 over REST, with the binary tensor extension."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from longboat import __version__
from longboat.runtime.bundle import Bundle, Tensor
from longboat.serve import input_checks
from longboat.serve.batching import Batcher
from longboat.serve.dtypes import BY_NAME
from longboat.serve.http_server import Request
from longboat.serve.model_versions import ServedModel
from longboat.serve.prediction import HttpPrediction, RequestCounters
from longboat.serve.request_errors import invalid
from longboat.serve.tfs_rest import dumps, loads

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]
    Outputs = dict[str, Array]

HEADER = b"inference-header-content-length"
_HEADER_OUT = b"Inference-Header-Content-Length"
OCTETS = b"application/octet-stream"
EXTENSIONS = ["binary_tensor_data", "model_repository"]


def server() -> bytes:
    return orjson.dumps({"name": "longboat", "version": __version__, "extensions": EXTENSIONS})


def metadata(model: ServedModel, bundle: Bundle) -> bytes:
    def described(tensor: Tensor) -> dict[str, Any]:
        shape = [-1 if length is None else length for length in tensor.shape]
        return {"name": tensor.name, "datatype": BY_NAME[tensor.dtype].oip, "shape": shape}

    return orjson.dumps(
        {
            "name": model.name,
            "versions": [str(version.number) for version in model.available()],
            "platform": "onnxruntime_onnx",
            "inputs": [described(tensor) for tensor in bundle.inputs],
            "outputs": [described(tensor) for tensor in bundle.outputs],
        }
    )


def infer(find: Callable[[], Batcher], counting: RequestCounters, most: int) -> Callable[[Request], None]:
    """Handler of one model's infer."""

    def handle(request: Request) -> None:
        batcher = find()
        batcher.admit()
        body = request.body if b"content-encoding" not in request.headers else request.content(most)
        split = request.headers.get(HEADER)
        document, rest = _split(body, split) if split is not None else (loads(body), None)
        inputs, asked = read(document, rest, batcher.runner.bundle)
        rows = input_checks.rows_of(inputs)

        def write(request: Request, outputs: Outputs) -> None:
            bundle = batcher.runner.bundle
            _write(request, asked, outputs, {"model_name": bundle.name, "model_version": str(bundle.version)})

        HttpPrediction(request, batcher, write, counting).ask(inputs, rows, asked.deadline)

    return handle


def _split(body: bytes, length: bytes) -> tuple[Any, memoryview]:
    """Split a body into JSON and the raw tensors after it."""
    if not length.isdigit() or len(length) > 12 or int(length) > len(body):
        raise invalid(f"Inference-Header-Content-Length is {length[:20]!r}; the body has {len(body)} bytes")
    at = int(length)
    return loads(body[:at]), memoryview(body)[at:]


class InferRequest:
    """Response options of a request."""

    __slots__ = ("binary", "deadline", "id", "outputs")

    def __init__(self, document: dict[str, Any], bundle: Bundle) -> None:
        self.id = document.get("id")
        if self.id is not None and type(self.id) is not str:
            raise invalid("'id' must be a string")
        parameters = _parameters(document)
        by_default = parameters.get("binary_data_output", False) is True
        timeout = parameters.get("timeout", 0)
        wait = timeout / 1e6 if type(timeout) is int and 0 < timeout < 1 << 50 else 0.0
        self.deadline = time.monotonic() + wait if wait else 0.0
        self.outputs: list[str] | None = None
        self.binary: dict[str, bool] | bool = by_default
        asked = document.get("outputs")
        if asked is None or asked == []:
            return
        if type(asked) is not list:
            raise invalid("'outputs' must be a list")
        self.outputs, self.binary = [], {}
        known = {tensor.name for tensor in bundle.outputs}
        for output in asked:
            if type(output) is not dict or type(output.get("name")) is not str:
                raise invalid("each of 'outputs' must be an object with a 'name'")
            name = output["name"]
            if name not in known:
                raise invalid(f"the model has no output {name!r}; it has {', '.join(sorted(known))}")
            settings = _parameters(output)
            if "classification" in settings:
                raise invalid(
                    f"output {name!r}: the classification extension is not supported; sort the scores instead"
                )
            self.outputs.append(name)
            self.binary[name] = settings.get("binary_data", by_default) is True


def _parameters(body: dict[str, Any]) -> dict[str, Any]:
    parameters = body.get("parameters") or {}
    if type(parameters) is not dict:
        raise invalid("'parameters' must be an object")
    return parameters


def read(body: Any, rest: memoryview | None, bundle: Bundle) -> tuple[Outputs, InferRequest]:
    if type(body) is not dict or type(body.get("inputs")) is not list:
        raise invalid("the body must be a JSON object with a list of 'inputs'")
    infer_request = InferRequest(body, bundle)
    tensors = {tensor.name: tensor for tensor in bundle.inputs}
    inputs: Outputs = {}
    names = []
    for given in body["inputs"]:
        if type(given) is not dict or type(given.get("name")) is not str:
            raise invalid("each of 'inputs' must be an object with 'name', 'shape', 'datatype' and 'data'")
        names.append(given["name"])
        tensor = tensors.get(given["name"])
        if tensor is None:
            continue  # reported below, with all names
        if tensor.name in inputs:
            raise invalid(f"duplicate input {tensor.name!r}")
        inputs[tensor.name], rest = _tensor(tensor, given, rest)
    input_checks.missing(bundle.inputs, names)
    if rest is not None and len(rest):
        raise invalid(f"{len(rest)} bytes follow the last tensor")
    return inputs, infer_request


def _tensor(tensor: Tensor, given: dict[str, Any], rest: memoryview | None) -> tuple[Array, memoryview | None]:
    shape = checked_shape(tensor, given.get("shape"))
    checked_type(tensor, given.get("datatype"))
    size = _parameters(given).get("binary_data_size")
    if size is not None:
        if rest is None or type(size) is not int or not 0 <= size <= len(rest):
            have = 0 if rest is None else len(rest)
            raise invalid(f"input {tensor.name!r}: binary_data_size is {str(size)[:20]}; {have} bytes are left")
        return input_checks.raw(tensor, rest[:size], shape), rest[size:]
    data = given.get("data")
    if type(data) is not list:
        raise invalid(f"input {tensor.name!r} has no 'data'")
    return _listed(tensor, data, shape), rest


def checked_shape(tensor: Tensor, shape: Any) -> list[int]:
    if type(shape) is not list or any(type(length) is not int or not 0 <= length < 1 << 40 for length in shape):
        raise invalid(f"input {tensor.name!r}: 'shape' must be a list of whole numbers")
    input_checks.fits(tensor, shape)
    return shape


def checked_type(tensor: Tensor, datatype: Any) -> None:
    wanted = BY_NAME[tensor.dtype].oip
    if datatype != wanted:
        raise invalid(f"input {tensor.name!r} expects the datatype {wanted}, got {str(datatype)[:40]!r}")


def _listed(tensor: Tensor, data: list[Any], shape: list[int]) -> Array:
    """Values from a flat or nested list."""
    if len(shape) > 1 and data and type(data[0]) is list:
        array = input_checks.column(tensor, data)
        if list(array.shape) != shape:
            raise invalid(f"input {tensor.name!r}: 'shape' is {shape}, 'data' has {list(array.shape)}")
        return array
    flat = input_checks.column(Tensor(tensor.name, tensor.dtype, (None,)), data)
    count = int(np.prod(shape, dtype=object))
    if flat.size != count:
        raise invalid(f"input {tensor.name!r}: the shape {shape} holds {count} values, 'data' has {flat.size}")
    return flat.reshape(shape)


def _write(request: Request, infer_request: InferRequest, outputs: Outputs, response: dict[str, Any]) -> None:
    names = infer_request.outputs if infer_request.outputs is not None else list(outputs)
    if infer_request.id is not None:
        response["id"] = infer_request.id
    parts: list[bytes] = []
    described = []
    for name in names:
        array = outputs[name]
        kind = BY_NAME["string" if array.dtype.kind == "O" else array.dtype.name].oip
        description: dict[str, Any] = {"name": name, "shape": array.shape, "datatype": kind}
        if infer_request.binary if isinstance(infer_request.binary, bool) else infer_request.binary[name]:
            content = input_checks.packed_strings(array) if kind == "BYTES" else array.tobytes()
            description["parameters"] = {"binary_data_size": len(content)}
            parts.append(content)
        else:
            description["data"] = array.ravel().tolist() if kind == "BYTES" else np.ascontiguousarray(array).reshape(-1)
        described.append(description)
    response["outputs"] = described
    if not parts:
        request.json(dumps(response))
        return
    head = orjson.dumps(response) if len(parts) == len(names) else dumps(response)
    request.reply(200, head + b"".join(parts), OCTETS, ((_HEADER_OUT, b"%d" % len(head)),))


def index(models: list[ServedModel]) -> bytes:
    """The repository index: every version, and why a version is not served."""
    index = [
        {
            "name": model.name,
            "version": str(version.number),
            "state": "READY" if version.batcher is not None else "UNAVAILABLE",
            "reason": version.error,
        }
        for model in models
        for version in model.status()
    ]
    return orjson.dumps(index)
