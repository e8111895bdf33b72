"""Predict's messages as bytes, for the common case of one tensor in and float32 or float64 out.

Going through a message field by field costs as much as a small model does. A client in a loop sends the same bytes
again but for its numbers: what such a request means is kept with the bytes around them (Frame). Packed floats are on
the wire as they are in memory, so all that stands before them in an answer depends on name, type and shape alone and is
kept too. Everything else goes through protobuf; tests hold the two against each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from longboat.runtime.bundle import Tensor
from longboat.serve.protos import tfs_pb2 as tfs

if TYPE_CHECKING:
    import numpy as np

    Outputs = dict[str, np.ndarray[Any, Any]]

LEAST = 64
"""Bytes: fewer numbers could stand elsewhere in the message by chance."""
_PLAIN = {"f": (1, 5, 4), "d": (2, 6, 8)}
"""numpy's letter -> TensorFlow's type, the field of its values, bytes of one."""
_MOST = 4096
_heads: dict[tuple[str, str, tuple[int, ...]], bytes] = {}


@dataclass(frozen=True, slots=True)
class Frame:
    """A request but for its numbers, and what it means."""

    head: bytes
    tail: bytes
    tensor: Tensor
    shape: tuple[int, ...]
    version: int | None
    model: str

    def content(self, raw: bytes) -> bytes | None:
        """The numbers of a request of this frame; None: it is another."""
        head, tail = self.head, self.tail
        if raw.startswith(head) and raw.endswith(tail):
            return raw[len(head) : len(raw) - len(tail)]
        return None


def frame(raw: bytes, request: Any, tensors: Sequence[Tensor]) -> Frame | None:
    """The frame of a request that was read and found right; None where its numbers do not stand in one piece."""
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
    """The model_spec of an answer, with its field number."""
    told = tfs.PredictResponse()
    told.model_spec.name = name
    told.model_spec.version.value = version
    told.model_spec.signature_name = signature_name
    content: bytes = told.SerializeToString()
    return content


def response(outputs: Outputs, model_spec: bytes) -> bytes | None:
    """The message, or None when an output is of another type."""
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
    """All that stands before the values of one output."""
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
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)
