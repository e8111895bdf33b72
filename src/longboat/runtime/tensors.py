"""The safetensors format, read and written with the standard library and the buffer protocol.

Eight bytes of header length, a JSON header (name -> dtype, shape, offsets; free text under `__metadata__`), then the
bytes of all arrays. Arrays can be anything with a buffer (numpy, JAX on the CPU, array.array), anything that becomes
a numpy array without an import on our side (TensorFlow), and PyTorch tensors, by address. Larger items come first, so
that all are aligned. The format has no complex numbers that all its readers know: they are stored as pairs of floats,
in one more dimension, and `longboat.complex` of the metadata names them.

A file written by `write` holds its own CRC-32 in the metadata, at a fixed place. It covers all other bytes of the file.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import struct
import sys
import zlib
from typing import Any, BinaryIO, Dict, Iterator, List, Mapping, Tuple, cast

SIZES = {
    "C128": 16,
    "C64": 8,
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
CHECKSUM = "longboat.crc32"
"""Metadata: the file's CRC-32 as eight hexadecimal digits, computed with zeros in their place."""
UNSET = "00000000"
COMPLEX = "longboat.complex"
"""Metadata: names of the complex arrays, as JSON."""
PIECE = 1 << 22
"""Bytes read or written at once: few enough to be in the processor's cache when the checksum reads them."""
_BEFORE_CHECKSUM = f'{{"{METADATA}":{{"{CHECKSUM}":"'.encode()
_CHECKSUM_AT = 8 + len(_BEFORE_CHECKSUM)
HEADER_MOST = 100_000_000
"""Bytes; other readers refuse a longer header."""

_KINDS = {"efd": "F", "bhilqn": "I", "BHILQN": "U", "?": "BOOL"}
"""Letters of the buffer protocol -> kind. The item size gives the type: a letter's size differs by platform."""
_CASTS = {
    "F64": "d", "F32": "f", "F16": "e", "I64": "q", "I32": "i", "I16": "h", "I8": "b", "U64": "Q", "U32": "I",
    "U16": "H", "U8": "B", "BOOL": "?",
}  # fmt: skip
_NUMPY = {
    "C128": "complex128", "C64": "complex64",
    "F64": "float64", "F32": "float32", "F16": "float16", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_PAIRS = {"C128": ("F64", "Zd"), "C64": ("F32", "Zf")}
"""Complex types -> the type of their two floats, and their letters in the buffer protocol."""
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
        value = value.astype(value.dtype.newbyteorder("<"))
        buffer = memoryview(value)
    short = _short(buffer)
    if short in _PAIRS:
        value = _as_numpy(value, name)
        pairs = _in_order(value).reshape(-1).view(_NUMPY[_PAIRS[short][0]])
        return short, tuple(value.shape), _bytes(memoryview(pairs))
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
    names = order(described)
    pairs = [name for name in names if described[name][0] in _PAIRS]
    text = {**text, COMPLEX: json.dumps(pairs)} if pairs else text
    table: Dict[str, Any] = {METADATA: dict(text)} if text else {}
    at = 0
    for name in names:
        dtype, shape = described[name]
        size = _extent(dtype, shape)
        if dtype in _PAIRS:
            dtype, shape = _PAIRS[dtype][0], (*shape, 2)
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    body = json.dumps(table, separators=(",", ":")).encode()
    body += b" " * (-len(body) % 8)
    return struct.pack("<Q", len(body)) + body, at


def write(fd: int, header: bytes, data: memoryview) -> str:
    """Write a file whose metadata begins with `CHECKSUM: UNSET`; returns its checksum."""
    crc = 0
    for rest in (memoryview(header), data):
        while len(rest):
            piece = rest[: os.write(fd, rest[:PIECE])]
            crc = zlib.crc32(piece, crc)
            rest = rest[len(piece) :]
    checksum = f"{crc:08x}"
    os.pwrite(fd, checksum.encode(), _CHECKSUM_AT)
    return checksum


def read(path: str) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """(arrays, metadata). Raises ValueError with the file's name if the file is not valid."""
    with _opened(path) as file:
        table, text, crc = _table(file)
        arrays = {}
        for name, item in sorted(table.items(), key=lambda entry: entry[1]["data_offsets"]):
            arrays[name], crc = _array(file, item, crc)
        if CHECKSUM in text:
            _compare(f"{crc:08x}", text[CHECKSUM])
        for name in json.loads(text.get(COMPLEX, "[]")):
            arrays[name] = _joined(arrays[name])
        return arrays, text


def metadata(path: str) -> Dict[str, str]:
    """The file's metadata. Reads only the header; raises ValueError if it does not match the file's size."""
    with _opened(path) as file:
        return _table(file)[1]


def damage(file: BinaryIO, size: int, checksum: str) -> str:
    """What is wrong with a file that `write` wrote with this size and checksum; empty if nothing. Reads all of it."""
    count, crc, piece = 0, 0, file.read(PIECE)
    recorded = piece[_CHECKSUM_AT:][: len(UNSET)].decode("ascii", "replace")
    piece = _unset(piece)
    while piece:
        count, crc = count + len(piece), zlib.crc32(piece, crc)
        piece = file.read(PIECE)
    try:
        if count != size:
            raise ValueError(f"it has {count} bytes, expected {size}")
        _compare(f"{crc:08x}", checksum)
        _compare(recorded, checksum)
    except ValueError as error:
        return str(error)
    return ""


@contextlib.contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    """The file; whatever its content makes fail is a ValueError with its name."""
    try:
        with open(path, "rb") as file:
            yield file
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise ValueError(f"{path} is not a valid safetensors file: {error}") from None


def _compare(checksum: str, expected: str) -> None:
    if checksum != expected:
        raise ValueError(f"its checksum is {checksum}, expected {expected or 'another'}")


def _unset(start: bytes) -> bytes:
    """The start of a file with zeros in place of its checksum."""
    if start[8:_CHECKSUM_AT] != _BEFORE_CHECKSUM:
        return start
    return start[:_CHECKSUM_AT] + UNSET.encode() + start[_CHECKSUM_AT + len(UNSET) :]


def _table(file: BinaryIO) -> Tuple[Dict[str, Any], Dict[str, str], int]:
    """(entries, metadata, checksum of the header), checked against each other and the file's size."""
    size = os.fstat(file.fileno()).st_size
    start = file.read(8)
    (length,) = struct.unpack("<Q", start)
    if length > min(size - 8, HEADER_MOST):
        raise ValueError(f"its header claims a length of {length} bytes")
    start += file.read(length)
    table = json.loads(start[8:])
    text = table.pop(METADATA, {})
    at = 0
    for item in sorted(table.values(), key=lambda item: item["data_offsets"]):
        begin, end = item["data_offsets"]
        if begin != at or end - begin != _extent(item["dtype"], item["shape"]):
            raise ValueError(f"bytes {begin} to {end} do not fit {item['dtype']} {item['shape']}")
        at = end
    if 8 + length + at != size:
        raise ValueError(f"it has {size} bytes, but its header describes {8 + length + at}")
    return table, text, zlib.crc32(_unset(start))


def _array(file: BinaryIO, item: Mapping[str, Any], crc: int) -> Tuple[Any, int]:
    """The array that comes next in the file, and the checksum so far."""
    begin, end = item["data_offsets"]
    shape, dtype = tuple(item["shape"]), item["dtype"]
    special = next((name for name, (short, _) in _BITS.items() if short == dtype), "")
    if special:
        value = _empty_special(special, shape)
        return value, _fill(file, view(value, special)[2], crc)
    try:
        import numpy
    except ImportError:
        data = memoryview(bytearray(end - begin))
        crc = _fill(file, data, crc)
        return data.cast(cast(Any, _CASTS[dtype]), shape) if shape and data.nbytes else data, crc
    array = numpy.empty(shape, _NUMPY[dtype])
    return array, _fill(file, _bytes(memoryview(array.reshape(-1).view("uint8"))), crc)


def _joined(pairs: Any) -> Any:
    """Complex numbers from pairs of floats; without numpy, the pairs."""
    if isinstance(pairs, memoryview):
        return pairs
    short = next(short for short, (real, _) in _PAIRS.items() if _NUMPY[real] == _type_name(pairs))
    return pairs.view(_NUMPY[short]).reshape(pairs.shape[:-1])


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


def _fill(file: BinaryIO, data: memoryview, crc: int) -> int:
    """Fill the memory from the file; returns the checksum so far."""
    while len(data):
        count = cast(Any, file).readinto(data[:PIECE])
        if not count:
            raise ValueError("it ends too early")
        crc = zlib.crc32(data[:count], crc)
        data = data[count:]
    return crc


def _extent(dtype: str, shape: Any) -> int:
    size = SIZES[dtype]
    for length in shape:
        size *= length
    return size


def _type_name(value: Any) -> str:
    return str(getattr(value, "dtype", ""))


def _short(buffer: memoryview) -> str:
    form = buffer.format.lstrip("@=<")
    pairs = next((short for short, (_, letters) in _PAIRS.items() if letters == form), "")
    if pairs:
        return pairs
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
    value = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
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
