"""Encodes rows as a PredictRequest and decodes a PredictResponse, for TensorFlow Serving's gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from longboat.runtime.errors import FAILED, LongboatError
from longboat.runtime.light_dataclasses import dataclass
from longboat.serve.client import http_codecs, tf_example
from longboat.serve.client.model_signature import Signature, TensorSpec, choose, is_serialized
from longboat.serve.client.rows import Row
from longboat.serve.client.target import Target
from longboat.serve.dtypes import BY_NAME, BY_TF
from longboat.serve.protos import tfs_pb2 as tfs

PREDICT = "/tensorflow.serving.PredictionService/Predict"
METADATA = "/tensorflow.serving.PredictionService/GetModelMetadata"


@dataclass(frozen=True)
class GrpcCodec:
    target: Target
    signature: Signature

    def encode(self, rows: Sequence[Row]) -> bytes:
        request = tfs.PredictRequest()
        _name(request.model_spec, self.target)
        request.model_spec.signature_name = self.signature.name
        for tensor in self.signature.inputs:
            values = (
                [tf_example.encode(row) for row in rows]
                if self.signature.serialized
                else http_codecs.flat([row[tensor.name] for row in rows])
            )
            _fill(request.inputs[tensor.name], tensor, http_codecs.shape_of(tensor, len(rows), len(values)), values)
        return bytes(request.SerializeToString())

    def decode(self, body: bytes) -> http_codecs.Columns:
        try:
            response = tfs.PredictResponse.FromString(body)
        except Exception as error:  # protobuf's class differs between releases
            raise http_codecs.not_understood(error) from None
        return {name: _column(tensor) for name, tensor in response.outputs.items()}


def metadata_request(target: Target) -> bytes:
    request = tfs.GetModelMetadataRequest()
    _name(request.model_spec, target)
    request.metadata_field.append("signature_def")
    return bytes(request.SerializeToString())


def signature_of(model: str, body: bytes, wanted: str) -> Signature:
    """The signature from the response to GetModelMetadata."""
    response = tfs.GetModelMetadataResponse.FromString(body)
    if "signature_def" not in response.metadata:
        raise LongboatError(f"the server returned no signature of {model}", code=FAILED)
    signatures = tfs.SignatureDefMap.FromString(response.metadata["signature_def"].value).signature_def
    name = choose(sorted(signatures), wanted)
    chosen = signatures[name]
    inputs = tuple(_tensor(key, info) for key, info in sorted(chosen.inputs.items()))
    outputs = tuple(_tensor(key, info) for key, info in sorted(chosen.outputs.items()))
    first = next((info.name for info in chosen.inputs.values()), "")
    version = str(response.model_spec.version.value) if response.model_spec.HasField("version") else ""
    serialized = is_serialized(inputs, first, chosen.method_name)
    return Signature(model, version, inputs, outputs, name, serialized=serialized)


def _name(spec: Any, target: Target) -> None:
    spec.name = target.model
    if target.version:
        spec.version.value = int(target.version)


def _tensor(name: str, info: Any) -> TensorSpec:
    if info.dtype not in BY_TF:
        raise LongboatError(f"the model has a tensor of the unsupported type {info.dtype}", code=FAILED)
    sizes = tuple(None if dim.size < 0 else int(dim.size) for dim in info.tensor_shape.dim)
    return TensorSpec(name, BY_TF[info.dtype].name, (None,) if info.tensor_shape.unknown_rank else sizes)


def _fill(proto: Any, tensor: TensorSpec, shape: Sequence[int], values: list[Any]) -> None:
    proto.dtype = BY_NAME[tensor.dtype].tf
    for size in shape:
        proto.tensor_shape.dim.add().size = size
    if tensor.dtype == "string":
        proto.string_val.extend(value if isinstance(value, bytes) else str(value).encode() for value in values)
    else:
        proto.tensor_content = http_codecs.packed(values, tensor)


def _column(proto: Any) -> list[Any]:
    kind = BY_TF[proto.dtype]
    shape = [dim.size for dim in proto.tensor_shape.dim]
    if kind.name == "string":
        values: list[Any] = [value.decode("utf-8", "replace") for value in proto.string_val]
    elif proto.tensor_content:
        values = http_codecs.unpacked(proto.tensor_content, kind.name)
    else:
        values = list(getattr(proto, kind.field))
        if kind.name == "float16":  # sent as their bit patterns
            values = http_codecs.unpacked(b"".join(int(bits).to_bytes(2, "little") for bits in values), kind.name)
    count = 1
    for size in shape:
        count *= size
    if len(values) == 1 < count:  # TensorFlow writes a tensor of equal values as one value
        values *= count
    return http_codecs.by_rows(values, shape)
