"""TensorBoard's event files, written without TensorFlow or TensorBoard.

    from longboat import tensorboard

    board = tensorboard.Writer(os.path.join(os.environ["LONGBOAT_OUTPUT_DIR"], "tensorboard"))
    board.scalar("loss", 0.31, step=10)
    board.histogram("weights", weights, step=10)

`longboat board RUN` shows what a stage wrote below its output directory. Each call appends one complete record
without a buffer, so readers can follow the file and a killed writer loses nothing.

An event is a small protobuf message, framed by its length and two checksums: simple enough to write by hand.
TensorBoard reads them.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from typing import Any, List, Optional, Sequence, Tuple

BUCKETS = 30
_POLYNOMIAL = 0x82F63B78
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5
"""Wire types of protobuf."""


class Writer:
    """One event file in a directory.

    resume_step: the step that a resumed training continues after. TensorBoard then ignores what earlier files of the
    directory say about later steps (about all steps without it), because those steps are computed again.
    """

    def __init__(self, directory: str, resume_step: Optional[int] = None) -> None:
        os.makedirs(directory, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns() / 1e9:.6f}.{socket.gethostname()}.{os.getpid()}"
        self.path = os.path.join(directory, name)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._append(opening(time.time()) + restart(0 if resume_step is None else resume_step + 1, time.time()))

    def scalar(self, tag: str, value: Any, step: int) -> None:
        self._append(scalars([(tag, float(value))], step, time.time()))

    def histogram(self, tag: str, values: Any, step: int) -> None:
        """values: numbers, or an array of any shape."""
        flat = values.ravel().tolist() if hasattr(values, "ravel") else values
        self._append(histogram(tag, [float(value) for value in flat], step, time.time()))

    def close(self) -> None:
        os.close(self._fd)

    def _append(self, record: bytes) -> None:
        os.write(self._fd, record)


def opening(when: float) -> bytes:
    """The first record of an event file; a `restart` must follow, the first of which undoes nothing."""
    return _record(_event(when, 0, _text(3, "brain.Event:2")))


def restart(step: int, when: float) -> bytes:
    """From here on, points of `step` and later replace earlier ones."""
    return _record(_event(when, step, _message(7, _number(1, 1))))


def scalars(values: Sequence[Tuple[str, float]], step: int, when: float) -> bytes:
    summary = b"".join(_message(1, _text(1, tag) + _key(2, _FLOAT) + _float32(value)) for tag, value in values)
    return _record(_event(when, step, _message(5, summary)))


def histogram(tag: str, values: Sequence[float], step: int, when: float) -> bytes:
    limits, counts = buckets(values)
    low, high = (min(values), max(values)) if values else (0.0, 0.0)
    figures = (low, high, float(len(values)), sum(values), sum(value * value for value in values))
    parts = b"".join(_key(field, _DOUBLE) + struct.pack("<d", figure) for field, figure in enumerate(figures, 1))
    parts += _message(6, struct.pack(f"<{len(limits)}d", *limits))
    parts += _message(7, struct.pack(f"<{len(counts)}d", *counts))
    return _record(_event(when, step, _message(5, _message(1, _text(1, tag) + _message(5, parts)))))


def buckets(values: Sequence[float]) -> Tuple[List[float], List[float]]:
    """Right edges and counts of equally wide buckets between the smallest and the largest value."""
    if not values:
        return [0.0], [0.0]
    low, high = min(values), max(values)
    width = (high - low) / BUCKETS
    if not 0 < width < float("inf"):
        return [high], [float(len(values))]
    counts = [0.0] * BUCKETS
    for value in values:
        counts[min(int((value - low) / width), BUCKETS - 1)] += 1
    return [low + width * (number + 1) for number in range(BUCKETS - 1)] + [high], counts


def _event(when: float, step: int, what: bytes) -> bytes:
    return _key(1, _DOUBLE) + struct.pack("<d", when) + _number(2, step) + what


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    """CRC-32C, masked as in record files."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = tuple(_entry(byte) for byte in range(256))


def _key(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _number(field: int, value: int) -> bytes:
    return _key(field, _VARINT) + _varint(value & 0xFFFFFFFFFFFFFFFF)


def _text(field: int, value: str) -> bytes:
    return _message(field, value.encode("utf-8", "replace"))


def _message(field: int, data: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(data)) + data


def _float32(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:  # larger than a float32 can be
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
