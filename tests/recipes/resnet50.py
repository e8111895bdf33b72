"""What the tests of the recipe resnet50 share: its modules, and shards of JPEGs in ImageNet's form."""

from __future__ import annotations

import importlib
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg

RECIPE = Path(__file__).parents[2] / "recipes/resnet50"
COLOURS = [(230, 30, 30), (30, 230, 30), (30, 30, 230), (230, 230, 30), (230, 30, 230)]
COLOURS += [(30, 230, 230), (230, 230, 230), (30, 30, 30), (130, 60, 20), (130, 130, 130)]


@pytest.fixture(scope="module")
def rooms() -> Iterator[Any]:
    """The recipe's modules that need no JAX, which find each other as they do when they are run."""
    names = ("records", "images", "small", "loader", "train")
    sys.path.insert(0, str(RECIPE))
    yield {name: importlib.import_module(name) for name in names}
    sys.path.remove(str(RECIPE))
    for name in names:
        sys.modules.pop(name, None)


def picture(label: int, draw: np.random.Generator) -> bytes:
    """A JPEG of a class: its colour on noise, somewhere in the image."""
    height, width = draw.integers(40, 90, 2)
    image = draw.integers(60, 190, (height, width, 3)).astype(np.uint8)
    y, x = draw.integers(0, height // 4), draw.integers(0, width // 4)
    image[y : y + height * 3 // 4, x : x + width * 3 // 4] = COLOURS[label]
    return bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(image), quality=90))


def shards(rooms: Any, place: Path, train: int = 240, validation: int = 100) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(7)
    for name, images, count in (("train", train, 3), ("validation", validation, 2)):
        for shard in range(count):
            labels = [at % 10 for at in range(shard, images, count)]
            features = [{"image/encoded": picture(label, draw), "image/class/label": label + 1} for label in labels]
            path = place / f"{name}-{shard:05d}-of-{count:05d}"
            rooms["records"].write(str(path), [rooms["records"].example(one) for one in features])
    return place


@pytest.fixture(scope="module")
def data(rooms: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards(rooms, tmp_path_factory.mktemp("shards"))


def spoil(path: Path, rooms: Any, how: str) -> None:
    """Does something to the second record of a file."""
    records = rooms["records"]
    raw = bytearray(path.read_bytes())
    start = int(records.offsets(str(path))[0][1])
    jpeg = picture(3, np.random.default_rng(1))
    good: dict[str, Any] = {"image/encoded": jpeg, "image/class/label": 4}
    made = {
        "label": {**good, "image/class/label": 11},
        "background": {**good, "image/class/label": 0},
        "nothing": {"image/class/label": 4},
        "no jpeg": {**good, "image/encoded": b"GIF89a"},
        "torn jpeg": {**good, "image/encoded": jpeg[:300]},
    }
    if how in made:
        length = struct.unpack_from("<Q", raw, start)[0]
        records.write(f"{path}.one", [records.example(made[how])])
        raw[start : start + length + 16] = Path(f"{path}.one").read_bytes()
        os.unlink(f"{path}.one")
    elif how == "cut":
        del raw[start + 40 :]
    elif how == "cut in the head":
        del raw[start + 5 :]
    else:
        raw[start + {"length": 0, "data": 60}[how]] ^= 1
    path.write_bytes(raw)
