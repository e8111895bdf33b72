"""Checks request inputs against the model's signature and converts them to arrays.

Messages name the input, what it expects and what it got. Nothing here knows the protocol.
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
"""Kind of a model's type -> kinds of JSON values it accepts: floats accept integers, not the reverse."""
_LETTERS = {"float32": "f", "float64": "d"}
_CALLED = {"f": "fractions", "i": "whole numbers", "u": "whole numbers", "b": "true or false", "U": "strings"}


def shown(shape: Sequence[int | None]) -> str:
    return "[" + ", ".join("*" if length is None else str(length) for length in shape) + "]"


def column(tensor: Tensor, value: Any) -> Array:
    """One input as an array, from nested JSON lists, batch dimension first."""
    if tensor.dtype == "string":
        array = _strings(tensor, value)
    else:
        if len(tensor.shape) == 2 and tensor.dtype in _LETTERS and (width := tensor.shape[1]):
            quick = _plain_rows(value, width, _LETTERS[tensor.dtype])
            if quick is not None:
                return quick
        array = _numbers(tensor, value)
    fits(tensor, array.shape)
    return array


def _plain_rows(value: Any, width: int, letter: str) -> Array | None:
    """Rows of this many numbers, twice as fast as numpy; None for anything else."""
    try:
        if type(value) is not list or not value or type(value[0][0]) is bool:
            return None
        pack = _packer(width, letter)
        array: Array = np.frombuffer(b"".join([pack(*row) for row in value]), letter)
    except (struct.error, OverflowError, TypeError, IndexError, KeyError):
        return None
    return array.reshape(len(value), width)


@lru_cache(256)
def _packer(width: int, letter: str) -> Callable[..., bytes]:
    return struct.Struct(f"{width}{letter}").pack


def fits(tensor: Tensor, shape: Sequence[int]) -> None:
    """Refuse a shape that the model does not accept, and an empty batch."""
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
    raise invalid(f"input {tensor.name!r} expects the shape {shown(wanted)}, got {shown(shape)}")


def _numbers(tensor: Tensor, value: Any) -> Array:
    try:
        array: Array = np.array(value)
    except (ValueError, OverflowError, RecursionError):
        raise invalid(f"input {tensor.name!r} is ragged: every row must have the shape {shown(tensor.shape)}") from None
    wanted = np.dtype(tensor.dtype)
    kind = array.dtype.kind
    if array.size == 0:
        array = array.astype(wanted)
    elif kind not in _TAKES[wanted.kind]:
        what = _CALLED.get(kind, "a value that is not a number (or is too large)")
        raise invalid(f"input {tensor.name!r} expects {tensor.dtype}, got {what}")
    elif wanted.kind in "iu" and array.dtype != wanted:
        limits = np.iinfo(wanted)
        low, high = int(array.min()), int(array.max())
        if low < limits.min or high > limits.max:
            raise invalid(
                f"input {tensor.name!r} expects {tensor.dtype} ({limits.min} to {limits.max}), got {low} to {high}"
            )
    return array if array.dtype == wanted else array.astype(wanted)


def _strings(tensor: Tensor, value: Any) -> Array:
    """An object array of str, built in Python because numpy cuts strings at zero bytes."""
    flat: list[str] = []
    shape = _walk(tensor, value, 0, flat)
    array: Array = np.empty(len(flat), dtype=object)
    array[:] = flat
    return array.reshape(shape)


def _walk(tensor: Tensor, value: Any, depth: int, flat: list[str]) -> tuple[int, ...]:
    if depth == len(tensor.shape):
        flat.append(text(tensor, value))
        return ()
    if not isinstance(value, list):
        raise invalid(f"input {tensor.name!r} expects the shape {shown(tensor.shape)}, got {depth} dimensions")
    shapes = [_walk(tensor, each, depth + 1, flat) for each in value]
    if any(shape != shapes[0] for shape in shapes):
        raise invalid(f"input {tensor.name!r} is ragged: every row must have the shape {shown(tensor.shape)}")
    return (len(value), *(shapes[0] if shapes else ()))


def text(tensor: Tensor, value: Any) -> str:
    """A JSON string, or bytes as {"b64": "..."}, always UTF-8."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str):
        try:
            return decoded(tensor, base64.b64decode(value["b64"], validate=True))
        except (binascii.Error, ValueError):
            raise invalid(f"input {tensor.name!r}: the b64 value is not valid base64") from None
    raise invalid(f"input {tensor.name!r} expects strings, got {_named(value)}")


def decoded(tensor: Tensor, raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise invalid(f"input {tensor.name!r} expects UTF-8 text: byte {error.start} is not valid") from None


def raw(tensor: Tensor, content: bytes | memoryview, shape: Sequence[int]) -> Array:
    """Little-endian bytes as an array, without a copy; each string has its length in four bytes before it."""
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
    array: Array = np.frombuffer(content, np.uint8 if flags else kind).reshape(shape)
    return array != 0 if flags else array


def _raw_strings(tensor: Tensor, content: bytes, count: int) -> Array:
    texts: list[str] = []
    at = 0
    while at < len(content):
        length = int.from_bytes(content[at : at + 4], "little")
        if at + 4 + length > len(content):
            raise invalid(f"input {tensor.name!r}: string {len(texts)} is truncated: its length is {length} bytes")
        texts.append(decoded(tensor, content[at + 4 : at + 4 + length]))
        at += 4 + length
    return of_texts(tensor, texts, count)


def of_texts(tensor: Tensor, texts: Sequence[str], count: int) -> Array:
    if len(texts) != count:
        raise invalid(f"input {tensor.name!r}: the shape holds {count} values, got {len(texts)}")
    flat: Array = np.empty(count, dtype=object)
    flat[:] = texts
    return flat


def packed_strings(array: Array) -> bytes:
    """Strings as raw bytes of the Open Inference Protocol."""
    parts = []
    for each in array.ravel():
        content = each if isinstance(each, bytes) else str(each).encode()
        parts += [len(content).to_bytes(4, "little"), content]
    return b"".join(parts)


def rows_of(inputs: dict[str, Array]) -> int:
    """Number of rows, which must be the same for all inputs."""
    lengths = {name: len(array) for name, array in inputs.items()}
    if len(set(lengths.values())) > 1:
        lengths_text = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise invalid(f"the inputs have different numbers of rows: {lengths_text}")
    return next(iter(lengths.values()))


def missing(wanted: Sequence[Tensor], given: Sequence[str]) -> None:
    """Refuse a request whose input names differ from the model's."""
    names = [tensor.name for tensor in wanted]
    lacks = [name for name in names if name not in given]
    extra = [name for name in given if name not in names]
    if lacks or extra:
        mistakes = [f"lacks {', '.join(map(repr, lacks))}"] if lacks else []
        mistakes += [f"has unknown {', '.join(map(repr, extra))}"] if extra else []
        raise invalid(f"the request {' and '.join(mistakes)}; the model's inputs: {', '.join(names)}")


def _named(value: Any) -> str:
    names = {dict: "an object", list: "a list", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
