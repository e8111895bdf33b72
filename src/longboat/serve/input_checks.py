"""What clients send, held against what the model wants: JSON lists and raw bytes become arrays, or a clear refusal.

The messages name the input, what it wants and what came. Which protocol it came by is not known here.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from longboat.serve.request_errors import invalid

if TYPE_CHECKING:
    from longboat.runtime.bundle import Tensor

    Array = np.ndarray[Any, Any]

_TAKES = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}
"""The kind of a model's type and the kinds of JSON values it takes: a whole number is a fine float, not the reverse."""
_LETTERS = {"float32": "f", "float64": "d"}
_CALLED = {"f": "fractions", "i": "whole numbers", "u": "whole numbers", "b": "true or false", "U": "strings"}


def shown(shape: Sequence[int | None]) -> str:
    return "[" + ", ".join("*" if length is None else str(length) for length in shape) + "]"


def column(tensor: Tensor, value: Any) -> Array:
    """One input's rows from JSON: nested lists, the batch outermost."""
    if tensor.dtype == "string":
        found = _strings(tensor, value)
    else:
        if len(tensor.shape) == 2 and tensor.dtype in _LETTERS and (width := tensor.shape[1]):
            quick = _plain_rows(value, width, _LETTERS[tensor.dtype])
            if quick is not None:
                return quick
        found = _numbers(tensor, value)
    fits(tensor, found.shape)
    return found


def _plain_rows(value: Any, width: int, letter: str) -> Array | None:
    """Rows of so many numbers each, in half the time that numpy takes; None where they are anything else."""
    try:
        if type(value) is not list or not value or type(value[0][0]) is bool:
            return None
        pack = _packer(width, letter)
        found: Array = np.frombuffer(b"".join([pack(*row) for row in value]), letter)
    except (struct.error, OverflowError, TypeError, IndexError, KeyError):
        return None
    return found.reshape(len(value), width)


@lru_cache(256)
def _packer(width: int, letter: str) -> Callable[..., bytes]:
    return struct.Struct(f"{width}{letter}").pack


def fits(tensor: Tensor, shape: Sequence[int]) -> None:
    """Refuses a shape that the model does not take, and an empty batch."""
    wanted = tensor.shape
    if len(shape) == len(wanted):
        for have, want in zip(shape, wanted, strict=True):
            if want is not None and have != want:
                break
        else:
            if 0 not in shape:
                return
            if shape[0] == 0:
                raise invalid(f"input {tensor.name!r} has no rows: send at least one")
    raise invalid(f"input {tensor.name!r} wants the shape {shown(wanted)}, got {shown(shape)}")


def _numbers(tensor: Tensor, value: Any) -> Array:
    try:
        found: Array = np.array(value)
    except (ValueError, OverflowError, RecursionError):
        raise invalid(f"input {tensor.name!r} is ragged: every row must have the shape {shown(tensor.shape)}") from None
    wanted = np.dtype(tensor.dtype)
    kind = found.dtype.kind
    if found.size == 0:
        found = found.astype(wanted)
    elif kind not in _TAKES[wanted.kind]:
        what = _CALLED.get(kind, "something that is no number (or too large for one)")
        raise invalid(f"input {tensor.name!r} wants {tensor.dtype}, got {what}")
    elif wanted.kind in "iu" and found.dtype != wanted:
        limits = np.iinfo(wanted)
        low, high = int(found.min()), int(found.max())
        if low < limits.min or high > limits.max:
            raise invalid(
                f"input {tensor.name!r} wants {tensor.dtype} ({limits.min} to {limits.max}), got {low} to {high}"
            )
    return found if found.dtype == wanted else found.astype(wanted)


def _strings(tensor: Tensor, value: Any) -> Array:
    """Object array of str. Python's own walk: numpy would cut strings at zero bytes."""
    flat: list[str] = []
    shape = _walk(tensor, value, 0, flat)
    found: Array = np.empty(len(flat), dtype=object)
    found[:] = flat
    return found.reshape(shape)


def _walk(tensor: Tensor, value: Any, depth: int, flat: list[str]) -> tuple[int, ...]:
    if depth == len(tensor.shape):
        flat.append(text(tensor, value))
        return ()
    if not isinstance(value, list):
        raise invalid(f"input {tensor.name!r} wants the shape {shown(tensor.shape)}, got {depth} dimensions")
    shapes = [_walk(tensor, each, depth + 1, flat) for each in value]
    if any(shape != shapes[0] for shape in shapes):
        raise invalid(f"input {tensor.name!r} is ragged: every row must have the shape {shown(tensor.shape)}")
    return (len(value), *(shapes[0] if shapes else ()))


def text(tensor: Tensor, value: Any) -> str:
    """A JSON string, or bytes as {"b64": "..."}: always UTF-8."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str):
        try:
            return decoded(tensor, base64.b64decode(value["b64"], validate=True))
        except (binascii.Error, ValueError):
            raise invalid(f"input {tensor.name!r}: the b64 value is not base64") from None
    raise invalid(f"input {tensor.name!r} wants strings, got {_named(value)}")


def decoded(tensor: Tensor, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise invalid(f"input {tensor.name!r} wants UTF-8 text: byte {error.start} is not") from None


def raw(tensor: Tensor, content: bytes | memoryview, shape: Sequence[int]) -> Array:
    """Little-endian bytes as an array without a copy; strings each behind their length in four bytes."""
    fits(tensor, shape)
    count = math.prod(shape)
    if tensor.dtype == "string":
        return _raw_strings(tensor, bytes(content), count).reshape(shape)
    kind = np.dtype(tensor.dtype)
    if len(content) != count * kind.itemsize:
        raise invalid(
            f"input {tensor.name!r}: {shown(shape)} of {tensor.dtype} is {count * kind.itemsize} bytes, "
            f"got {len(content)}"
        )
    flags = kind.kind == "b"
    found: Array = np.frombuffer(content, np.uint8 if flags else kind).reshape(shape)
    return found != 0 if flags else found


def _raw_strings(tensor: Tensor, content: bytes, count: int) -> Array:
    found: list[str] = []
    at = 0
    while at < len(content):
        length = int.from_bytes(content[at : at + 4], "little")
        if at + 4 + length > len(content):
            raise invalid(f"input {tensor.name!r}: string {len(found)} says {length} bytes, fewer are there")
        found.append(decoded(tensor, content[at + 4 : at + 4 + length]))
        at += 4 + length
    return of_texts(tensor, found, count)


def of_texts(tensor: Tensor, found: Sequence[str], count: int) -> Array:
    if len(found) != count:
        raise invalid(f"input {tensor.name!r}: the shape holds {count} values, got {len(found)}")
    flat: Array = np.empty(count, dtype=object)
    flat[:] = found
    return flat


def packed_strings(array: Array) -> bytes:
    """Strings as the Open Inference Protocol has them in raw bytes."""
    parts = []
    for each in array.ravel():
        content = each if isinstance(each, bytes) else str(each).encode()
        parts += [len(content).to_bytes(4, "little"), content]
    return b"".join(parts)


def rows_of(inputs: dict[str, Array]) -> int:
    """The batch's length, the same in all inputs."""
    lengths = {name: len(array) for name, array in inputs.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise invalid(f"the inputs differ in their number of rows: {told}")
    return next(iter(lengths.values()))


def missing(wanted: Sequence[Tensor], given: Sequence[str]) -> None:
    """Refuses a request whose input names are not those of the model."""
    names = [tensor.name for tensor in wanted]
    lacks = [name for name in names if name not in given]
    extra = [name for name in given if name not in names]
    if lacks or extra:
        told = [f"lacks {', '.join(map(repr, lacks))}"] if lacks else []
        told += [f"has {', '.join(map(repr, extra))}, which the model does not know"] if extra else []
        raise invalid(f"the request {' and '.join(told)}; the model's inputs: {', '.join(names)}")


def _named(value: Any) -> str:
    names = {dict: "an object", list: "a list", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
