"""Encodes rows as HTTP requests and decodes responses, for TensorFlow Serving's REST and v2.

Requests are complete, head and body, so that a load test encodes them before it starts.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from typing import Any, Protocol

from longboat.runtime.errors import FAILED, LongboatError
from longboat.runtime.light_dataclasses import dataclass
from longboat.serve.client import tf_example
from longboat.serve.client.example_files import Value
from longboat.serve.client.model_signature import DEFAULT, OPEN, Signature, TensorSpec
from longboat.serve.client.rows import Row
from longboat.serve.client.target import Target
from longboat.serve.dtypes import BY_NAME

Columns = dict[str, list[Value]]
"""Outputs by name, one value for each row."""

PACKED = {
    "float16": "e",
    "float32": "f",
    "float64": "d",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "bool": "?",
}
"""Type letters of struct; all are little-endian on the wire."""


class Codec(Protocol):
    def encode(self, rows: Sequence[Row]) -> bytes: ...

    def decode(self, body: bytes) -> Columns: ...


def of(target: Target, signature: Signature) -> Codec:
    if target.protocol == "grpc":
        from longboat.serve.client.grpc_codec import GrpcCodec

        return GrpcCodec(target, signature)
    return V2(target, signature) if target.protocol == "v2" else Rest(target, signature)


def head(target: Target, method: str, path: str, size: int, extra: str = "") -> bytes:
    """The head of a request, including the final blank line."""
    login = f"Authorization: Bearer {target.token}\r\n" if target.token else ""
    body = f"Content-Type: application/json\r\nContent-Length: {size}\r\n" if method == "POST" else ""
    text = f"{method} {target.prefix}{path} HTTP/1.1\r\nHost: {target.authority}\r\n{login}{body}{extra}\r\n"
    return text.encode("latin-1")


def path_of(target: Target, root: str) -> str:
    from urllib.parse import quote

    version = f"/versions/{target.version}" if target.version else ""
    return f"/{root}/models/{quote(target.model, safe='')}{version}"


def loads(body: bytes) -> Any:
    """Parse JSON, with orjson if it is installed: a load test decodes every response."""
    try:
        import orjson
    except ModuleNotFoundError:
        return json.loads(body)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return json.loads(body)  # NaN and Infinity, which some servers send


@dataclass(frozen=True)
class Rest:
    """TensorFlow Serving's REST API, row format."""

    target: Target
    signature: Signature

    def encode(self, rows: Sequence[Row]) -> bytes:
        names = [tensor.name for tensor in self.signature.inputs]
        instances: list[Any]
        if self.signature.serialized:
            instances = [{"b64": base64.b64encode(tf_example.encode(row)).decode()} for row in rows]
        elif len(names) == 1:
            instances = [row[names[0]] for row in rows]
        else:
            instances = list(rows)
        document: dict[str, Any] = {"instances": instances}
        if self.signature.name != DEFAULT:
            document["signature_name"] = self.signature.name
        body = json.dumps(document, separators=(",", ":")).encode()
        return head(self.target, "POST", path_of(self.target, "v1") + ":predict", len(body)) + body

    def decode(self, body: bytes) -> Columns:
        try:
            answer = loads(body)
            predictions = answer["predictions"]
            if predictions and isinstance(predictions[0], dict):
                return {name: [row[name] for row in predictions] for name in predictions[0]}
            return {self.signature.outputs[0].name: predictions}
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise not_understood(error) from None


@dataclass(frozen=True)
class V2:
    """Open Inference Protocol over HTTP, with binary tensors if the server supports them."""

    target: Target
    signature: Signature

    def encode(self, rows: Sequence[Row]) -> bytes:
        inputs, blobs = [], []
        for tensor in self.signature.inputs:
            values = (
                [tf_example.encode(row) for row in rows]
                if self.signature.serialized
                else flat([row[tensor.name] for row in rows])
            )
            entry: dict[str, Any] = {
                "name": tensor.name,
                "shape": shape_of(tensor, len(rows), len(values)),
                "datatype": BY_NAME[tensor.dtype].oip,
            }
            if self.signature.binary:
                blobs.append(packed(values, tensor))
                entry["parameters"] = {"binary_data_size": len(blobs[-1])}
            else:
                entry["data"] = [value.decode("latin-1") if isinstance(value, bytes) else value for value in values]
            inputs.append(entry)
        document: dict[str, Any] = {"inputs": inputs}
        extra = ""
        if self.signature.binary:
            document["parameters"] = {"binary_data_output": True}
        body = json.dumps(document, separators=(",", ":")).encode()
        if self.signature.binary:
            extra = f"Inference-Header-Content-Length: {len(body)}\r\n"
            body += b"".join(blobs)
        return head(self.target, "POST", path_of(self.target, "v2") + "/infer", len(body), extra) + body

    def decode(self, body: bytes) -> Columns:
        try:
            document, at = _before_binary(body) if self.signature.binary else (loads(body), 0)
            columns: Columns = {}
            for output in document["outputs"]:
                dtype, size = OPEN[output["datatype"]], (output.get("parameters") or {}).get("binary_data_size")
                if size is None:
                    values = flat(output["data"])
                else:
                    values = unpacked(body[at : at + size], dtype)
                    at += size
                columns[output["name"]] = by_rows(values, output["shape"])
            return columns
        except (ValueError, KeyError, TypeError, IndexError, struct.error) as error:
            raise not_understood(error) from None


_DECODER = json.JSONDecoder()


def _before_binary(body: bytes) -> tuple[Any, int]:
    """The JSON before binary tensors, and its end. The header with its length is not kept, but the JSON document
    determines it too."""
    return _DECODER.raw_decode(body.decode("latin-1"))


def shape_of(tensor: TensorSpec, rows: int, values: int) -> list[int]:
    """The shape of a batch; one free dimension follows from the number of values."""
    sizes = tensor.shape[1:]
    known = 1
    for size in sizes:
        known *= size or 1
    return [rows, *(size if size is not None else values // max(rows * known, 1) for size in sizes)]


def flat(values: Any) -> list[Any]:
    if values and isinstance(values[0], list):
        return [each for value in values for each in flat(value)]
    return list(values)


def packed(values: Sequence[Any], tensor: TensorSpec) -> bytes:
    """Values as little-endian bytes; text and bytes each have their length before them."""
    if tensor.dtype == "string":
        raw = [value if isinstance(value, bytes) else str(value).encode() for value in values]
        return b"".join(struct.pack("<I", len(each)) + each for each in raw)
    try:
        return struct.pack(f"<{len(values)}{PACKED[tensor.dtype]}", *values)
    except (struct.error, OverflowError) as error:
        raise LongboatError(f"a value for {tensor} does not fit: {error}") from None


def unpacked(data: bytes, dtype: str) -> list[Any]:
    if dtype != "string":
        letter = PACKED[dtype]
        return list(struct.unpack(f"<{len(data) // struct.calcsize('<' + letter)}{letter}", data))
    values, at = [], 0
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at)
        values.append(data[at + 4 : at + 4 + size].decode("utf-8", "replace"))
        at += 4 + size
    return values


def by_rows(values: list[Any], shape: Sequence[int]) -> list[Any]:
    """Flat values, split into one entry per row."""
    if len(shape) <= 1:
        return values
    rows = shape[0]
    step = len(values) // rows if rows else 0
    return [by_rows(values[i * step : (i + 1) * step], shape[1:]) for i in range(rows)]


def not_understood(error: Exception) -> LongboatError:
    return LongboatError(f"cannot decode the response ({type(error).__name__}: {error})", code=FAILED)
