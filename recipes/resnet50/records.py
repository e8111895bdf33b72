"""TFRecord files of tf.train.Example, read and written with numpy alone.

A file is a row of records: length (8 bytes), its checksum, the data, its checksum. An Example is a protocol buffer: a
map from names to lists of bytes, floats or whole numbers. Checksums are CRC-32C; every one is looked at. What is
damaged is told with its file and its number, counted from 0.
"""

import os
import struct
from functools import lru_cache

import numpy as np

POLYNOMIAL = 0x82F63B78
BLOCK = 1024
"""Bytes of which the checksum is found at once."""
HEAD, TAIL = 12, 4


class Bad(Exception):
    """A record, or the rest of a file, that cannot be used. Its text names the file, the record and what is wrong."""

    def __init__(self, path, number, wrong):
        super().__init__(path, number, wrong)
        self.path, self.number, self.wrong = path, number, wrong

    def __str__(self):
        return f"{self.path}, record {self.number}: {self.wrong}"


@lru_cache(maxsize=1)
def tables():
    """(what a byte adds at each place of a block, where each place begins in that, the first four places, the last).

    A CRC is linear: that of a block is the exclusive-or of what each byte adds, each looked up by its place and value.
    Looking up a thousand bytes at once is what makes numpy fast enough.
    """
    one = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        one = np.where(one & 1, (one >> 1) ^ POLYNOMIAL, one >> 1).astype(np.uint32)
    places = np.empty((BLOCK, 256), np.uint32)
    places[0] = one
    for place in range(1, BLOCK):
        places[place] = one[places[place - 1] & 255] ^ (places[place - 1] >> 8)
    block = np.ascontiguousarray(places[::-1])
    return block.reshape(-1), np.arange(BLOCK, dtype=np.int32) * 256, block[:4].tolist(), one.tolist()


def crc32c(data):
    """By google-crc32c where that is installed, forty times as fast; the same number either way."""
    theirs = fast_crc32c()
    return theirs(bytes(data)) if theirs else slow_crc32c(data)


@lru_cache(maxsize=1)
def fast_crc32c():
    try:
        from google_crc32c import value
    except ModuleNotFoundError:
        return None
    return value


def slow_crc32c(data):
    block, places, after, one = tables()
    crc = 0xFFFFFFFF
    whole = len(data) // BLOCK * BLOCK
    if whole:
        rows = np.frombuffer(data, np.uint8, whole).reshape(-1, BLOCK)
        sums = np.bitwise_xor.reduce(block.take(rows + places), axis=1).tolist()
        first, second, third, fourth = after
        for found in sums:
            crc = found ^ first[crc & 255] ^ second[crc >> 8 & 255] ^ third[crc >> 16 & 255] ^ fourth[crc >> 24]
    for byte in bytes(data[whole:]):
        crc = one[(crc ^ byte) & 255] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def masked(crc):
    """As TFRecord keeps it: turned and shifted, so that the checksum of a checksum is no fixed number."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def offsets(path):
    """(where each whole record of a file begins, what is wrong with the rest or None)."""
    found, at = [], 0
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError as error:
        return np.zeros(0, np.int64), Bad(path, 0, f"the file cannot be opened: {error.strerror}")
    try:
        size = os.fstat(file).st_size
        if not size:
            return np.zeros(0, np.int64), Bad(path, 0, "the file is empty")
        while at < size:
            wrong, length = None, 0
            head = os.pread(file, HEAD, at)
            if len(head) < HEAD:
                wrong = f"the file ends within the record: {size - at} bytes of its head of {HEAD} are there"
            else:
                length, told = struct.unpack("<QI", head)
                if masked(crc32c(head[:8])) != told:
                    wrong = "the checksum of its length is wrong; where later records begin is not known"
                elif at + HEAD + length + TAIL > size:
                    wrong = f"the file ends within the record: {size - at} of {HEAD + length + TAIL} bytes are there"
            if wrong:
                return np.array(found, np.int64), Bad(path, len(found), wrong)
            found.append(at)
            at += HEAD + length + TAIL
    except OSError as error:
        return np.array(found, np.int64), Bad(path, len(found), f"cannot be read: {error.strerror}")
    finally:
        os.close(file)
    return np.array(found, np.int64), None


def read(file, path, number, offset):
    """The data of one record of an open file."""
    try:
        head = os.pread(file, HEAD, offset)
        length = struct.unpack("<Q", head[:8])[0] if len(head) == HEAD else 0
        rest = os.pread(file, length + TAIL, offset + HEAD)
    except OSError as error:
        raise Bad(path, number, f"cannot be read: {error.strerror}") from None
    if len(head) < HEAD or len(rest) < length + TAIL:
        raise Bad(path, number, "the file became shorter while it was used")
    data = memoryview(rest)[:length]
    if masked(crc32c(data)) != struct.unpack("<I", rest[length:])[0]:
        raise Bad(path, number, "the checksum of its data is wrong")
    return data


def write(path, records):
    """A TFRecord file, whole or not at all."""
    unfinished = f"{path}.{os.getpid()}.new"
    with open(unfinished, "wb") as file:
        for data in records:
            length = struct.pack("<Q", len(data))
            file.write(length + struct.pack("<I", masked(crc32c(length))))
            file.write(data + struct.pack("<I", masked(crc32c(data))))
    os.replace(unfinished, path)


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def example(features):
    """A tf.train.Example of texts, bytes, whole numbers or floats, each alone or in a list."""
    out = b""
    for name, values in features.items():
        values = values if isinstance(values, list) else [values]
        if isinstance(values[0], (str, bytes)):
            kind = 1
            data = b"".join(field(1, v.encode() if isinstance(v, str) else v) for v in values)
        elif isinstance(values[0], float):
            kind, data = 2, field(1, struct.pack(f"<{len(values)}f", *values))
        else:
            kind, data = 3, field(1, b"".join(varint(v) for v in values))
        out += field(1, field(1, name.encode()) + field(2, field(kind, data)))
    return field(1, out)


def fields(data):
    """(number, value) of each field: a memoryview, or a whole number."""
    at = 0
    while at < len(data):
        key, at = number_at(data, at)
        if key & 7 == 2:
            size, at = number_at(data, at)
            if at + size > len(data):
                raise ValueError("a field is longer than what is left")
            yield key >> 3, data[at : at + size]
            at += size
        elif key & 7 == 0:
            value, at = number_at(data, at)
            yield key >> 3, value
        elif key & 7 in (1, 5):
            size = 8 if key & 7 == 1 else 4
            yield key >> 3, data[at : at + size]
            at += size
        else:
            raise ValueError(f"no field is of kind {key & 7}")


def number_at(data, at):
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number does not end")
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def features(data, wanted):
    """The first value of each wanted feature: a memoryview for bytes, a whole number for numbers."""
    found = {}
    for number, every in fields(memoryview(data)):
        for inner, entry in fields(every) if number == 1 else ():
            pair = dict(fields(entry)) if inner == 1 else {}
            name = bytes(pair.get(1, b"")).decode(errors="replace")
            if name in wanted:
                found[name] = first_of(pair.get(2, b""))
    return found


def first_of(feature):
    for kind, values in fields(feature):
        for _, value in fields(values):
            if kind == 3 and not isinstance(value, int):
                value, _ = number_at(value, 0)
            if kind in (1, 3):
                return value - (1 << 64) if kind == 3 and value >> 63 else value
    return None
