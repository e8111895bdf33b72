"""From a record to an image of the network's size: decoding, cropping, flipping. What a decoding process runs; no JAX.

A pixel is one number of 32 bits: red, green, blue and an empty byte. So the decoder writes it, so numpy looks it up in
one go, and so the network takes it.
"""

import math
import sys

import numpy as np
import records

try:
    import simplejpeg
except ModuleNotFoundError:
    sys.exit("JPEG images need simplejpeg: pip install simplejpeg (or --set INPUT=synthetic, which reads none)")

IMAGE, LABEL = "image/encoded", "image/class/label"
SIDES = (3 / 4, 4 / 3)
TRIES = 10
CENTRE = 224 / 256
"""Share of the shorter side that evaluation looks at: what a crop of 224 is after resizing to 256."""
EVEN, HALF, ODD = np.uint32(0x00FF00FF), np.uint32(0x00800080), np.uint32(0xFF00FF00)


def unpack(data, path, number, classes):
    """(JPEG, label from 0) of a record. ImageNet's labels begin with 1; 0 is the background, of which there is none."""
    try:
        found = records.features(data, (IMAGE, LABEL))
    except ValueError as error:
        raise records.Bad(path, number, f"not a tf.train.Example: {error}") from None
    for name, kind in ((IMAGE, memoryview), (LABEL, int)):
        if not isinstance(found.get(name), kind):
            raise records.Bad(path, number, f"no {name} of the right kind; is this a record of ImageNet?")
    if not 1 <= found[LABEL] <= classes:
        raise records.Bad(path, number, f"label {found[LABEL]} is not from 1 to {classes}")
    return found[IMAGE], found[LABEL] - 1


def random_box(height, width, smallest, draw):
    """(x, y, width, height) of a part of the image: smallest to all of its area, 3:4 to 4:3, anywhere."""
    for _ in range(TRIES):
        area = height * width * draw.uniform(smallest, 1)
        ratio = math.exp(draw.uniform(math.log(SIDES[0]), math.log(SIDES[1])))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            return int(draw.integers(width - wide + 1)), int(draw.integers(height - high + 1)), wide, high
    return centre_box(height, width, 1)


def centre_box(height, width, share=CENTRE):
    side = max(round(min(height, width) * share), 1)
    return (width - side) // 2, (height - side) // 2, side, side


def decode(jpeg, box_of, size):
    """(pixels of the image, the box in it): decoded at half, a quarter or an eighth where the box is large enough."""
    height, width, *_ = simplejpeg.decode_jpeg_header(jpeg)
    x, y, wide, high = box_of(height, width)
    factor = next((factor for factor in (8, 4, 2) if min(wide, high) >= factor * size), 1)
    least = {"min_height": -(-height // factor), "min_width": -(-width // factor)} if factor > 1 else {}
    pixels = simplejpeg.decode_jpeg(jpeg, "RGBX", **least)
    pixels = pixels.view(np.uint32)[..., 0]
    down, across = pixels.shape[0] / height, pixels.shape[1] / width
    return pixels, (x * across, y * down, wide * across, high * down)


def resize(pixels, box, size, flip=False):
    """The box of the image as size x size pixels, each from its four neighbours; whole numbers throughout."""
    x, y, wide, high = box
    rows, next_rows, down = neighbours(y, high, size, pixels.shape[0])
    columns, next_columns, right = neighbours(x, wide, size, pixels.shape[1])
    if flip:
        columns, next_columns, right = columns[::-1], next_columns[::-1], right[::-1]
    begin, end = min(columns[0], columns[-1]), max(next_columns[0], next_columns[-1]) + 1
    part = pixels[:, begin:end]
    mixed = between(part[rows], part[next_rows], down[:, None])
    return between(mixed.take(columns - begin, axis=1), mixed.take(next_columns - begin, axis=1), right)


def neighbours(start, length, count, limit):
    """For each of `count` places along a side: the pixel before it, the one after it, and how far between, of 256."""
    at = start + (np.arange(count) + 0.5) * (length / count) - 0.5
    at = np.clip(at, max(math.floor(start), 0), min(math.ceil(start + length), limit) - 1)
    before = at.astype(np.intp)
    return before, np.minimum(before + 1, limit - 1), ((at - before) * 256 + 0.5).astype(np.uint32)


def between(first, second, share):
    """Pixels between two others; two colours at a time, each in 16 of the 32 bits. Spoils its arguments."""
    rest = np.uint32(256) - share
    low = (first & EVEN) * rest
    low += (second & EVEN) * share
    low += HALF
    low >>= 8
    low &= EVEN
    first >>= 8
    second >>= 8
    first &= EVEN
    second &= EVEN
    first *= rest
    second *= share
    first += second
    first += HALF
    first &= ODD
    first |= low
    return first


def load(file, path, number, offset, size, classes, draw=None, smallest=1.0, flips=False):
    """(pixels, label) of a record; a random part of the image with a draw, its centre without."""
    jpeg, label = unpack(records.read(file, path, number, offset), path, number, classes)

    def box_of(height, width):
        return random_box(height, width, smallest, draw) if draw is not None else centre_box(height, width)

    try:
        pixels, box = decode(jpeg, box_of, size)
    except ValueError as error:
        raise records.Bad(path, number, f"its JPEG does not decode: {error}") from None
    flip = draw is not None and flips and bool(draw.integers(2))
    return resize(pixels, box, size, flip), label
