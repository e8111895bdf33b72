"""Encodes a row as a serialized tf.Example, for exports of TensorFlow's estimators.

The message is small and has not changed since 2015, so it is encoded by hand:

    Example  { Features features = 1; }
    Features { map<string, Feature> feature = 1; }
    Feature  { BytesList = 1 | FloatList = 2 | Int64List = 3 }   each: repeated value = 1
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from longboat.runtime.errors import LongboatError
from longboat.serve.client.example_files import Value


def encode(row: Mapping[str, Value]) -> bytes:
    """The row as a serialized tf.Example: text as bytes, numbers as floats, without empty values and NaN."""

    features = b"".join(
        _field(1, _field(1, name.encode()) + _field(2, _feature(value)))
        for name, value in sorted(row.items())
        if value != "" and value == value
    )
    return _field(1, features)


def _feature(value: Value) -> bytes:
    values = value if isinstance(value, list) else [value]
    if values and isinstance(values[0], str):
        return _field(1, b"".join(_field(1, str(each).encode()) for each in values))
    numbers = [float(each) for each in values if not isinstance(each, (list, str))]
    try:
        return _field(2, _field(1, struct.pack(f"<{len(numbers)}f", *numbers)))
    except OverflowError:
        raise LongboatError(
            f"{max(numbers, key=abs):g} is too large for a tf.Example, which has 32 bits for it"
        ) from None


def _field(number: int, body: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out + bytes([value]))
