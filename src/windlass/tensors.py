"""The safetensors format, read and written with the standard library and the buffer protocol.

Eight bytes of header length, a JSON header (name -> dtype, shape, offsets; free text under
`__metadata__`), then the bytes of all arrays. Arrays are taken from anything that gives a
buffer (numpy, JAX on the CPU, array.array) or can become a numpy array without our importing
anything (PyTorch, TensorFlow). Larger items come first, so that all stay aligned.

Ships into strangers' images: standard library only, Python 3.9.
"""

from __future__ import annotations

import json
import struct
import sys
from typing import Any, Dict, List, Mapping, Tuple, cast

DTYPES = {
    "float64": ("F64", 8),
    "float32": ("F32", 4),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "int64": ("I64", 8),
    "int32": ("I32", 4),
    "int16": ("I16", 2),
    "int8": ("I8", 1),
    "uint64": ("U64", 8),
    "uint32": ("U32", 4),
    "uint16": ("U16", 2),
    "uint8": ("U8", 1),
    "bool": ("BOOL", 1),
}
"""numpy's name -> the format's name and the size of an item."""

_SIZES = dict(DTYPES.values())
_NAMES = {short: name for name, (short, _) in DTYPES.items()}
_FORMATS = {
    "d": "F64", "f": "F32", "e": "F16", "q": "I64", "l": "I64" if struct.calcsize("l") == 8 else "I32", "i": "I32",
    "h": "I16", "b": "I8", "Q": "U64", "L": "U64" if struct.calcsize("L") == 8 else "U32", "I": "U32", "H": "U16",
    "B": "U8", "?": "BOOL",
}  # fmt: skip
_CASTS = {
    "F64": "d", "F32": "f", "F16": "e", "I64": "q", "I32": "i", "I16": "h", "I8": "b", "U64": "Q", "U32": "I",
    "U16": "H", "U8": "B", "BOOL": "?",
}  # fmt: skip

Described = Mapping[str, Tuple[str, Tuple[int, ...]]]
"""Name -> dtype and shape."""


def view(value: Any, name: str) -> Tuple[str, Tuple[int, ...], memoryview]:
    """(dtype, shape, bytes) of an array, without a copy where that is possible."""
    if hasattr(value, "detach"):
        value = _from_torch(value)
    declared = str(getattr(value, "dtype", ""))
    if declared == "bfloat16" or not _gives_buffer(value):
        value = _as_numpy(value, name)
        if declared == "bfloat16":
            return "BF16", tuple(value.shape), memoryview(_flat(value.view("uint16")))
    buffer = memoryview(value)
    if not buffer.c_contiguous:
        buffer = memoryview(_flat(value)) if hasattr(value, "copy") else memoryview(buffer.tobytes()).cast("B")
    shape = tuple(getattr(value, "shape", buffer.shape or ()))
    form = buffer.format.lstrip("@=<")
    if form not in _FORMATS:
        raise TypeError(f"{name}: arrays of format {buffer.format!r} cannot be kept in a checkpoint")
    return _FORMATS[form], shape, buffer.cast("B") if buffer.nbytes else memoryview(b"")


def order(described: Described) -> List[str]:
    """Names in the order of their bytes: larger items first, then by name."""
    return sorted(described, key=lambda name: (-_SIZES[described[name][0]], name))


def header(described: Described, text: Mapping[str, str]) -> Tuple[bytes, int]:
    """(header, number of bytes that follow it)."""
    table: Dict[str, Any] = {"__metadata__": dict(text)} if text else {}
    at = 0
    for name in order(described):
        dtype, shape = described[name]
        size = _SIZES[dtype]
        for length in shape:
            size *= length
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    body = json.dumps(table, separators=(",", ":")).encode()
    body += b" " * (-len(body) % 8)
    return struct.pack("<Q", len(body)) + body, at


def read(path: str) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """(arrays, metadata). ValueError, with the file's name, when the file is not whole."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        (length,) = struct.unpack_from("<Q", data)
        table = json.loads(data[8 : 8 + length])
        body = memoryview(data)[8 + length :]
        text = table.pop("__metadata__", {})
        arrays = {name: _array(item, body) for name, item in table.items()}
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from None
    return arrays, text


def _array(item: Mapping[str, Any], body: memoryview) -> Any:
    begin, end = item["data_offsets"]
    shape, dtype = tuple(item["shape"]), item["dtype"]
    if end > len(body):
        raise ValueError("it ends too early")
    data = body[begin:end]
    try:
        import numpy
    except ImportError:
        return data.cast(cast(Any, _CASTS[dtype]), shape) if shape and data.nbytes else data
    if dtype == "BF16":
        bits = numpy.frombuffer(data, "uint16").reshape(shape).copy()
        types = sys.modules.get("ml_dtypes")
        return bits.view(types.bfloat16) if types is not None else bits
    return numpy.frombuffer(data, _NAMES[dtype]).reshape(shape).copy()


def _gives_buffer(value: Any) -> bool:
    try:
        memoryview(value)
    except (TypeError, ValueError, BufferError):
        return False
    return True


def _from_torch(value: Any) -> Any:
    value = value.detach().cpu().contiguous()
    if str(value.dtype) == "torch.bfloat16":
        import torch

        return _Bits(value.view(torch.int16).numpy())
    return value.numpy()


class _Bits:
    """The sixteen bits of bfloat16 numbers, as a numpy array of integers holds them."""

    dtype = "bfloat16"

    def __init__(self, array: Any) -> None:
        self.shape = array.shape
        self._array = array

    def view(self, dtype: str) -> Any:
        return self._array.view(dtype)


def _as_numpy(value: Any, name: str) -> Any:
    if isinstance(value, _Bits):
        return value
    try:
        import numpy
    except ImportError:
        raise TypeError(f"{name}: a {type(value).__name__} gives no buffer, and numpy is not installed") from None
    return numpy.asarray(value)


def _flat(value: Any) -> Any:
    """In C order, one dimension; a copy only when it must be."""
    return value.reshape(-1) if value.flags["C_CONTIGUOUS"] else value.copy(order="C").reshape(-1)
