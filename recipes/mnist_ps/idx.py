"""The files of MNIST: an idx file is a magic number, its lengths as big-endian words, then bytes. Checked when read."""

import gzip
import os
import zlib

import numpy as np

PIXELS = 28 * 28
CLASSES = 10
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
IMAGES, LABELS = 0x00000803, 0x00000801


def found(directory, name):
    """Path of a file, plain or with .gz."""
    for path in (os.path.join(directory, name), os.path.join(directory, name + ".gz")):
        if os.path.exists(path):
            return path
    raise SystemExit(f"{os.path.join(directory, name)} does not exist, nor does it with .gz")


def read(path, magic, shape):
    """The bytes of an idx file as an array: its length, then `shape`."""
    try:
        with gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb") as file:
            data = file.read()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise SystemExit(f"{path}: {error}; is the file whole?") from None
    except OSError as error:
        raise SystemExit(f"{path} cannot be read: {error.strerror or error}") from None
    words = 2 + len(shape)
    head = np.frombuffer(data, ">u4", min(words, len(data) // 4))
    if len(head) < words or head[0] != magic:
        raise SystemExit(f"{path} does not begin like an idx file of {'images' if shape else 'labels'}")
    if tuple(head[2:]) != shape:
        raise SystemExit(f"{path} has images of {' x '.join(map(str, head[2:]))}, not of {' x '.join(map(str, shape))}")
    wanted, there = int(head[1]) * int(np.prod(shape)), len(data) - 4 * words
    if there != wanted:
        raise SystemExit(f"{path} announces {wanted} bytes behind its head and has {there}; is the file whole?")
    return np.frombuffer(data, np.uint8, offset=4 * words).reshape(int(head[1]), *shape)


def examples(directory, part, bad_rows="stop", say=print):
    """(images, labels) of a part, `train` or `test`. Rows with a label that cannot be are an error, or left out."""
    paths = [found(directory, name) for name in FILES[part]]
    images, labels = read(paths[0], IMAGES, (28, 28)), read(paths[1], LABELS, ())
    if len(images) != len(labels):
        raise SystemExit(f"{paths[0]} has {len(images)} images, {paths[1]} {len(labels)} labels")
    bad = np.flatnonzero(labels >= CLASSES)
    if len(bad) and bad_rows == "stop":
        raise SystemExit(
            f"{paths[1]}, row {bad[0] + 1}: the label is {labels[bad[0]]}; it must be 0 to {CLASSES - 1} "
            "(--set BAD_ROWS=skip leaves bad rows out and counts them)"
        )
    if len(bad):
        say(f"{paths[1]}: {len(bad)} rows skipped, the first of them row {bad[0] + 1} with label {labels[bad[0]]}")
        images, labels = np.delete(images, bad, axis=0), np.delete(labels, bad)
    if not len(images):
        raise SystemExit(f"{paths[0]} has no good row")
    return images.reshape(-1, PIXELS), labels


def write(directory, part, images, labels):
    for name, magic, array in zip(FILES[part], (IMAGES, LABELS), (images.reshape(-1, 28, 28), labels), strict=True):
        with open(os.path.join(directory, name), "wb") as file:
            file.write(np.array([magic, *array.shape], ">u4").tobytes() + array.tobytes())
