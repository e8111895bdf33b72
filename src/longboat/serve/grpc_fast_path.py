"""Fast path for gRPC Predict: encodes and decodes the common case without protobuf.

The common case is one input tensor and float32 or float64 outputs. Parsing a message field by field takes as long as a
small model. A client in a loop sends the same bytes except for the numbers, so the meaning of a request is cached with
the bytes around its numbers (Frame). Packed floats are on the wire as in memory, so the bytes before them in a response
depend only on name, type and shape, and are cached too. Everything else uses protobuf; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from longboat.runtime.bundle import Tensor
from longboat.runtime.light_dataclasses import dataclass
from longboat.serve.protos import tfs_pb2 as tfs

if TYPE_CHECKING:
    import numpy as np

    Outputs = dict[str, np.ndarray[Any, Any]]

LEAST = 64
"""Minimum bytes of numbers: fewer could occur elsewhere in the message by chance."""
_PLAIN = {"f": (1, 5, 4), "d": (2, 6, 8)}
"""numpy's type letter -> TensorFlow's type, field of the values, bytes per value."""
_MOST = 4096
_heads: dict[tuple[str, str, tuple[int, ...]], bytes] = {}


@dataclass(frozen=True)
class Frame:
    """A request without its numbers, and its meaning."""

    head: bytes
    tail: bytes
    tensor: Tensor
    shape: tuple[int, ...]
    version: int | None
    model: str

    def content(self, raw: bytes) -> bytes | None:
        """The numbers of a request with this frame; None if it has another one."""
        head, tail = self.head, self.tail
        if raw.startswith(head) and raw.endswith(tail):
            return raw[len(head) : len(raw) - len(tail)]
        return None


def frame(raw: bytes, request: Any, tensors: Sequence[Tensor]) -> Frame | None:
    """The frame of a valid request; None if its numbers are not in one piece."""
    if len(tensors) != 1 or tensors[0].dtype in ("string", "bool") or len(request.output_filter):
        return None
    given = request.inputs[tensors[0].name]
    content = given.tensor_content
    at = raw.find(content)
    if len(content) < LEAST or at < 0 or raw.find(content, at + 1) >= 0:
        return None
    spec = request.model_spec
    return Frame(
        raw[:at],
        raw[at + len(content) :],
        tensors[0],
        tuple(dim.size for dim in given.tensor_shape.dim),
        spec.version.value if spec.HasField("version") else None,
        spec.name,
    )


def spec(name: str, version: int, signature_name: str) -> bytes:
    """The model_spec of a response, with its field number."""
    response = tfs.PredictResponse()
    response.model_spec.name = name
    response.model_spec.version.value = version
    response.model_spec.signature_name = signature_name
    content: bytes = response.SerializeToString()
    return content


def response(outputs: Outputs, model_spec: bytes) -> bytes | None:
    """The response message; None if an output has another type."""
    parts: list[bytes] = []
    for name, array in outputs.items():
        key = (name, array.dtype.char, array.shape)
        head = _heads.get(key)
        if head is None:
            if key[1] not in _PLAIN:
                return None
            if len(_heads) >= _MOST:
                _heads.clear()
            head = _heads[key] = _head(*key)
        parts += (head, array.tobytes())
    parts.append(model_spec)
    return b"".join(parts)


def _head(name: str, letter: str, shape: tuple[int, ...]) -> bytes:
    """The bytes before the values of one output."""
    kind, field, width = _PLAIN[letter]
    size = width
    for length in shape:
        size *= length
    tensor = tfs.Tensor(dtype=kind)
    tensor.tensor_shape.SetInParent()
    for length in shape:
        tensor.tensor_shape.dim.add(size=length)
    values = (bytes([field << 3 | 2]) + _varint(size)) if size else b""
    front: bytes = tensor.SerializeToString() + values
    key = name.encode()
    entry = b"\x0a" + _varint(len(key)) + key + b"\x12" + _varint(len(front) + size) + front
    return b"\x0a" + _varint(len(entry) + size) + entry


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
