"""ResNet50's input: shards of images as large as ImageNet's, and how fast they are read, decoded and cropped.

    python3 bench/resnet50_input.py shards DIR [IMAGES]    # writes train and validation shards
    python3 bench/resnet50_input.py decode DIR [WORKERS]   # images/s of the decoding processes alone

The images are noise with the spectrum of photographs, 500 x 375, JPEGs of about 110 kB, as ImageNet's are on average.
Every one is written four times, with other labels, because making one takes longer than reading it.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

RECIPE = Path(__file__).resolve().parents[1] / "recipes/resnet50"
sys.path.insert(0, str(RECIPE))

HEIGHT, WIDTH, QUALITY = 375, 500, 90
COPIES = 4
SIZE, BATCH = 224, 512


def image(draw: Any) -> Any:
    import numpy as np

    down, across = np.fft.fftfreq(HEIGHT)[:, None], np.fft.fftfreq(WIDTH)[None]
    steep = np.maximum(np.hypot(down, across), 1 / WIDTH) ** 1.1
    grey = draw.normal(size=(HEIGHT, WIDTH))
    colours = []
    for _ in range(3):
        mixed = 0.9 * grey + 0.3 * draw.normal(size=(HEIGHT, WIDTH))
        plane = np.real(np.fft.ifft2(np.fft.fft2(mixed) / steep))
        colours.append((plane - plane.mean()) / plane.std() * 55 + 120)
    return np.ascontiguousarray(np.clip(np.stack(colours, axis=-1), 0, 255).astype(np.uint8))


def shard(path: str, seed: int, count: int) -> int:
    import numpy as np
    import records
    import simplejpeg

    draw = np.random.default_rng(seed)
    made = (image(draw) for _ in range(count // COPIES))
    jpegs = [bytes(simplejpeg.encode_jpeg(one, QUALITY, colorsubsampling="420")) for one in made]
    records.write(
        path,
        (
            records.example({"image/encoded": jpeg, "image/class/label": int(draw.integers(1, 1001))})
            for _ in range(COPIES)
            for jpeg in jpegs
        ),
    )
    return sum(map(len, jpegs)) // max(len(jpegs), 1)


def shards(directory: str, images: int) -> None:
    os.makedirs(directory, exist_ok=True)
    count = 16
    named = [(f"train-{at:05d}-of-{count:05d}", at, images // count) for at in range(count)]
    named.append(("validation-00000-of-00001", count, 64))
    began = time.monotonic()
    with ProcessPoolExecutor() as pool:
        sizes = list(pool.map(shard, *zip(*((os.path.join(directory, n), s, c) for n, s, c in named), strict=True)))
    print(f"{images} images, {sizes[0] / 1e3:.0f} kB each, written in {time.monotonic() - began:.0f} s", flush=True)


def decode(directory: str, workers: int) -> None:
    import loader

    pool = loader.Pool(workers, BATCH, SIZE)
    began = time.monotonic()
    found = loader.find(pool, directory, "train", "stop")
    told = f"{len(found)} records found in {time.monotonic() - began:.1f} s"
    how = loader.How(SIZE, 1000, "stop", 1, smallest=0.08, flips=True, train=True)
    feed = loader.Feed(pool, found, loader.training_tasks(0, len(found), BATCH, 0, 1, 1), how)
    for _ in range(loader.SLOTS + 1):
        feed.next()
    began, batches = time.monotonic(), max(3 * workers, 8)
    for _ in range(batches):
        feed.next()
    rate = batches * BATCH / (time.monotonic() - began)
    print(f"{told}; {workers} processes: {rate:.0f} images/s, {rate / workers:.0f} each", flush=True)
    pool.close()


if __name__ == "__main__":
    what, place, *rest = sys.argv[1:]
    if what == "shards":
        shards(place, int(rest[0]) if rest else 8192)
    else:
        decode(place, int(rest[0]) if rest else len(os.sched_getaffinity(0)))
