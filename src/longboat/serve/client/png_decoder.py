"""Decodes PNG without an image library: 1 to 8 bits per channel, not interlaced.

That is enough for drawings and scans of digits. Transparent pixels become white.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from longboat.runtime.errors import LongboatError
from longboat.serve.client.example_files import PixelImage

_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
LARGEST = 1 << 26
"""Maximum pixels: a small file can declare a huge image."""


def decode(name: str, data: bytes) -> PixelImage:
    try:
        return _decode(name, data)
    except (struct.error, zlib.error, IndexError, KeyError, ValueError) as error:
        raise LongboatError(f"{name} is not a valid PNG: {error}") from None


def _decode(name: str, data: bytes) -> PixelImage:
    chunks = list(_chunks(data))
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", chunks[0][1])
    if depth == 16 or interlaced:
        what = "interlaced" if interlaced else "16 bits a channel"
        raise LongboatError(f"{name} is an unsupported PNG: {what}", "save it with 8 bits, not interlaced")
    channels = _CHANNELS[colour]
    if not 0 < width * height <= LARGEST:
        raise LongboatError(f"{name} is too large: {width} x {height} pixels")
    stride = (width * channels * depth + 7) // 8
    raw = zlib.decompressobj().decompress(
        b"".join(body for kind, body in chunks if kind == b"IDAT"), (stride + 1) * height
    )
    if len(raw) < (stride + 1) * height:
        raise ValueError("its pixels end early")
    lines = _unfiltered(raw, stride, height, max(1, channels * depth // 8))
    values = b"".join(_samples(line, width * channels, depth, colour) for line in lines)
    if colour == 3:
        palette = next(body for kind, body in chunks if kind == b"PLTE")
        values = b"".join(palette[3 * i : 3 * i + 3] for i in values)
        if len(values) != 3 * width * height:
            raise ValueError("a colour is not in its palette")
        return PixelImage(height, width, 3, values)
    if channels in (2, 4):
        return PixelImage(height, width, channels - 1, _on_paper(values, channels))
    return PixelImage(height, width, channels, values)


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 8
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        yield kind, data[at + 8 : at + 8 + size]
        at += 12 + size


def _unfiltered(raw: bytes, stride: int, height: int, step: int) -> Iterator[bytearray]:
    above = bytearray(stride)
    for row in range(height):
        at = row * (stride + 1)
        kind, line = raw[at], bytearray(raw[at + 1 : at + 1 + stride])
        if kind > 4:
            raise ValueError(f"filter {kind}")
        for i in range(stride if kind else 0):
            left = line[i - step] if i >= step else 0
            up, corner = above[i], above[i - step] if i >= step else 0
            line[i] = (line[i] + (left, up, (left + up) // 2, _paeth(left, up, corner))[kind - 1]) & 255
        yield line
        above = line


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    a, b, c = abs(guess - left), abs(guess - up), abs(guess - corner)
    return left if a <= b and a <= c else up if b <= c else corner


def _samples(line: bytearray, count: int, depth: int, colour: int) -> bytes:
    """One byte per value: from 0 to 255, or an index into the palette."""
    if depth == 8:
        return bytes(line)
    top = (1 << depth) - 1
    scale = 1 if colour == 3 else 255 // top
    return bytes((line[i * depth >> 3] >> (8 - depth - (i * depth & 7)) & top) * scale for i in range(count))


def _on_paper(values: bytes, channels: int) -> bytes:
    out = bytearray()
    for at in range(0, len(values), channels):
        opaque = values[at + channels - 1]
        out += bytes((v * opaque + 255 * (255 - opaque)) // 255 for v in values[at : at + channels - 1])
    return bytes(out)
