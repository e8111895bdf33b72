"""The safetensors format, read and written with the standard library and the buffer protocol.

Eight bytes of header length, a JSON header (name -> dtype, shape, offsets; free text under `__metadata__`), then the
bytes of all arrays. Arrays can be anything with a buffer (numpy, JAX on the CPU, array.array), anything that becomes
a numpy array without an import on our side (TensorFlow), and PyTorch tensors, by address. Larger items come first, so
that all are aligned.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
from typing import Any, BinaryIO, Dict, List, Mapping, Tuple, cast

SIZES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
}
"""The format's name of a type -> bytes of an item."""

METADATA = "__metadata__"
HEADER_MOST = 100_000_000
"""Bytes; other readers refuse a longer header."""

_KINDS = {"efd": "F", "bhilqn": "I", "BHILQN": "U", "?": "BOOL"}
"""Letters of the buffer protocol -> kind. The item size gives the type: a letter's size differs by platform."""
_CASTS = {
    "F64": "d", "F32": "f", "F16": "e", "I64": "q", "I32": "i", "I16": "h", "I8": "b", "U64": "Q", "U32": "I",
    "U16": "H", "U8": "B", "BOOL": "?",
}  # fmt: skip
_NUMPY = {
    "F64": "float64", "F32": "float32", "F16": "float16", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_BITS = {
    "bfloat16": ("BF16", "uint16"),
    "float8_e4m3fn": ("F8_E4M3", "uint8"),
    "float8_e5m2": ("F8_E5M2", "uint8"),
}
"""Types without a letter in the buffer protocol -> the format's name, and the integer with the same bits."""

Described = Mapping[str, Tuple[str, Tuple[int, ...]]]
"""Name -> dtype and shape."""


def view(value: Any, name: str) -> Tuple[str, Tuple[int, ...], memoryview]:
    """(dtype, shape, bytes) of an array, without a copy if possible."""
    if hasattr(value, "detach") and hasattr(value, "data_ptr"):
        return _of_torch(value, name)
    if _type_name(value) in _BITS or not _gives_buffer(value):
        value = _as_numpy(value, name)
        if _type_name(value) in _BITS:
            short, bits = _BITS[_type_name(value)]
            return short, tuple(value.shape), _bytes(memoryview(_in_order(value).view(bits)))
    buffer = memoryview(value)
    if buffer.format.startswith((">", "!")) and sys.byteorder == "little" and hasattr(value, "astype"):
        buffer = memoryview(value.astype(value.dtype.newbyteorder("<")))
    short = _short(buffer)
    if not short:
        raise TypeError(
            f"{name}: cannot save a {type(value).__name__} of format {buffer.format!r} in a checkpoint; "
            "use an array of numbers (for nested values, one entry each)"
        )
    shape = tuple(buffer.shape or ())
    if not buffer.c_contiguous:
        buffer = memoryview(_in_order(value)) if hasattr(value, "flags") else memoryview(buffer.tobytes())
    return short, shape, _bytes(buffer)


def order(described: Described) -> List[str]:
    """Names in the order of their bytes: larger items first, then by name."""
    return sorted(described, key=lambda name: (-SIZES[described[name][0]], name))


def header(described: Described, text: Mapping[str, str]) -> Tuple[bytes, int]:
    """(header, number of bytes that follow it)."""
    table: Dict[str, Any] = {METADATA: dict(text)} if text else {}
    at = 0
    for name in order(described):
        dtype, shape = described[name]
        size = _extent(dtype, shape)
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    body = json.dumps(table, separators=(",", ":")).encode()
    body += b" " * (-len(body) % 8)
    return struct.pack("<Q", len(body)) + body, at


def read(path: str) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """(arrays, metadata). Raises ValueError with the file's name if the file is not complete."""
    try:
        with open(path, "rb") as file:
            table, text, start = _table(file)
            return {name: _array(file, start, item) for name, item in table.items()}, text
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise ValueError(f"{path} is not a complete safetensors file: {error}") from None


def is_complete(path: str) -> bool:
    """Whether the file's header matches the file. Reads only the header."""
    try:
        with open(path, "rb") as file:
            _table(file)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
        return False
    return True


def _table(file: BinaryIO) -> Tuple[Dict[str, Any], Dict[str, str], int]:
    """(entries, metadata, start of the data), checked against each other and the file's size."""
    size = os.fstat(file.fileno()).st_size
    (length,) = struct.unpack("<Q", file.read(8))
    if length > min(size - 8, HEADER_MOST):
        raise ValueError(f"its header claims a length of {length} bytes")
    table = json.loads(file.read(length))
    text = table.pop(METADATA, {})
    at = 0
    for item in sorted(table.values(), key=lambda item: item["data_offsets"]):
        begin, end = item["data_offsets"]
        if begin != at or end - begin != _extent(item["dtype"], item["shape"]):
            raise ValueError(f"bytes {begin} to {end} do not fit {item['dtype']} {item['shape']}")
        at = end
    if 8 + length + at != size:
        raise ValueError(f"it has {size} bytes, but its header describes {8 + length + at}")
    return table, text, 8 + length


def _array(file: BinaryIO, start: int, item: Mapping[str, Any]) -> Any:
    begin, end = item["data_offsets"]
    shape, dtype = tuple(item["shape"]), item["dtype"]
    file.seek(start + begin)
    special = next((name for name, (short, _) in _BITS.items() if short == dtype), "")
    if special:
        value = _empty_special(special, shape)
        if end > begin:
            _fill(file, view(value, special)[2])
        return value
    try:
        import numpy
    except ImportError:
        data = memoryview(bytearray(end - begin))
        _fill(file, data)
        return data.cast(cast(Any, _CASTS[dtype]), shape) if shape and data.nbytes else data
    array = numpy.empty(shape, _NUMPY[dtype])
    if end > begin:
        _fill(file, memoryview(array.reshape(-1)).cast("B"))
    return array


def _empty_special(dtype: str, shape: Tuple[int, ...]) -> Any:
    """An empty array of a type that numpy lacks: a PyTorch tensor if PyTorch is in use, else an array of ml_dtypes."""
    torch = sys.modules.get("torch")
    others = "jax" in sys.modules or "tensorflow" in sys.modules
    if hasattr(torch, dtype) and not others:
        return cast(Any, torch).empty(shape, dtype=getattr(torch, dtype), device="cpu")
    try:
        import ml_dtypes  # type: ignore[import-not-found,import-untyped,unused-ignore]
        import numpy
    except ImportError as error:
        raise ImportError(
            f"the checkpoint holds {dtype}, which needs the package ml_dtypes (or PyTorch, imported before): {error}"
        ) from None
    return numpy.empty(shape, getattr(ml_dtypes, dtype))


def _fill(file: BinaryIO, data: memoryview) -> None:
    while len(data):
        count = cast(Any, file).readinto(data[: 1 << 28])
        if not count:
            raise ValueError("it ends too early")
        data = data[count:]


def _extent(dtype: str, shape: Any) -> int:
    size = SIZES[dtype]
    for length in shape:
        size *= length
    return size


def _type_name(value: Any) -> str:
    return str(getattr(value, "dtype", ""))


def _short(buffer: memoryview) -> str:
    form = buffer.format.lstrip("@=<")
    kind = next((kind for letters, kind in _KINDS.items() if len(form) == 1 and form in letters), "")
    return kind + str(8 * buffer.itemsize) if kind in ("F", "I", "U") else kind


def _bytes(buffer: memoryview) -> memoryview:
    return buffer.cast("B") if buffer.nbytes else memoryview(b"")


def _gives_buffer(value: Any) -> bool:
    try:
        memoryview(value)
    except (TypeError, ValueError, BufferError):
        return False
    return True


def _of_torch(value: Any, name: str) -> Tuple[str, Tuple[int, ...], memoryview]:
    """A PyTorch tensor has no buffer, and numpy may be missing: its memory is read in place."""
    value = value.detach().cpu().contiguous()
    dtype = str(value.dtype).rpartition(".")[2]
    short = _BITS[dtype][0] if dtype in _BITS else next((s for s, n in _NUMPY.items() if n == dtype), "")
    if not short:
        raise TypeError(f"{name}: cannot save a tensor of {value.dtype} in a checkpoint")
    memory = (ctypes.c_ubyte * (value.numel() * value.element_size())).from_address(value.data_ptr())
    memory.tensor = value  # lives as long as the view of its memory
    return short, tuple(value.shape), _bytes(memoryview(memory))


def _as_numpy(value: Any, name: str) -> Any:
    try:
        import numpy
    except ImportError:
        raise TypeError(f"{name}: a {type(value).__name__} has no buffer, and numpy is not installed") from None
    array = numpy.asarray(value)
    if _type_name(array) not in _BITS and not _gives_buffer(array):
        raise TypeError(f"{name}: cannot save an array of {array.dtype} in a checkpoint")
    return array


def _in_order(value: Any) -> Any:
    """The array in C order; a copy only if necessary."""
    return value if value.flags["C_CONTIGUOUS"] else value.copy(order="C")
