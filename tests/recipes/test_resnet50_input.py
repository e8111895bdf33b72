"""The files and images that resnet50 learns from: records, their damage, their order, decoding and cropping."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg

from tests.recipes.resnet50 import data as data
from tests.recipes.resnet50 import rooms as rooms
from tests.recipes.resnet50 import shards, spoil


@pytest.mark.parametrize(
    ("data", "crc"),
    [(b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43), (bytes(range(32)), 0x46DD794E)],
)
def test_checksums_are_those_of_crc32c(rooms: Any, data: bytes, crc: int) -> None:
    assert rooms["records"].crc32c(data) == rooms["records"].slow_crc32c(data) == crc


def test_checksums_of_long_data_are_those_of_a_bytewise_loop(rooms: Any) -> None:
    records = rooms["records"]
    data = np.random.default_rng(1).integers(0, 256, 5000, dtype=np.uint8).tobytes()
    for length in (1023, 1024, 1025, 2048, 5000):
        crc = 0xFFFFFFFF
        for byte in data[:length]:
            crc ^= byte
            for _ in range(8):
                crc = crc >> 1 ^ (records.POLYNOMIAL if crc & 1 else 0)
        assert records.slow_crc32c(data[:length]) == records.crc32c(data[:length]) == crc ^ 0xFFFFFFFF


def test_an_example_is_the_bytes_that_protocol_buffers_make_of_it(rooms: Any) -> None:
    records = rooms["records"]
    told = records.example({"a": b"xy", "n": 300, "f": [1.5]})
    assert told == (
        b"\x0a\x29"
        b"\x0a\x0b\x0a\x01a\x12\x06\x0a\x04\x0a\x02xy"
        b"\x0a\x0b\x0a\x01n\x12\x06\x1a\x04\x0a\x02\xac\x02"
        b"\x0a\x0d\x0a\x01f\x12\x08\x12\x06\x0a\x04\x00\x00\xc0\x3f"
    )
    found = records.features(told, ("a", "n"))
    assert (bytes(found["a"]), found["n"]) == (b"xy", 300)
    unpacked = b"\x0a\x0c\x0a\x0a\x0a\x01n\x12\x05\x1a\x03\x08\xac\x02"
    assert records.features(unpacked, ("n",)) == {"n": 300}, "older writers do not pack numbers"


def test_what_is_written_is_read_and_in_the_form_of_tfrecord(rooms: Any, tmp_path: Path) -> None:
    records = rooms["records"]
    path = str(tmp_path / "one")
    told = [b"", b"first", bytes(3000)]
    records.write(path, told)
    raw = Path(path).read_bytes()
    assert struct.unpack_from("<Q", raw, 16) == (5,)
    assert raw[28:33] == b"first"
    offsets, bad = records.offsets(path)
    assert bad is None
    file = os.open(path, os.O_RDONLY)
    assert [bytes(records.read(file, path, at, int(offset))) for at, offset in enumerate(offsets)] == told
    os.close(file)


@pytest.mark.parametrize(
    ("how", "says", "kept"),
    [
        ("label", "label 11 is not from 1 to 10", 3),
        ("background", "label 0 is not from 1 to 10", 3),
        ("nothing", "no image/encoded of the right kind", 3),
        ("no jpeg", "its JPEG does not decode", 3),
        ("torn jpeg", "its JPEG does not decode", 3),
        ("data", "the checksum of its data is wrong", 3),
        ("length", "the checksum of its length is wrong", 1),
        ("cut", "the file ends within the record", 1),
        ("cut in the head", "the file ends within the record: 5 bytes of its head of 12 are there", 1),
    ],
)
def test_a_bad_record_is_named_and_stops_or_is_skipped_and_counted(
    rooms: Any, tmp_path: Path, how: str, says: str, kept: int, capsys: pytest.CaptureFixture[str]
) -> None:
    loader = rooms["loader"]
    place = shards(rooms, tmp_path / "bad", train=12, validation=2)
    path = place / "train-00001-of-00003"
    spoil(path, rooms, how)
    pool = loader.Pool(1, 12, 32)
    try:
        named = re.escape(f"{path}, record 1: {says}") + ".*BAD_DATA=skip"
        with pytest.raises(SystemExit, match=named):
            read(loader, pool, place, "stop")
        labels, skipped = read(loader, pool, place, "skip")
    finally:
        pool.close()
    assert f"skipped: {path}, record 1: {says}" in capsys.readouterr().out
    assert sum(label >= 0 for label in labels) == 8 + kept
    assert skipped == kept // 3, "the rest of a file that cannot be followed is told when it is opened"


def read(loader: Any, pool: Any, place: Path, bad_data: str) -> tuple[Any, int]:
    """Labels of all training images, each looked at once."""
    found = loader.find(pool, str(place), "train", bad_data)
    how = loader.How(32, 10, bad_data, 1)
    feed = loader.Feed(pool, found, loader.evaluation_tasks(len(found), 12, 0, 1), how)
    return feed.next()[1], len(feed.skipped)


def test_in_training_the_next_good_record_takes_the_place_of_a_bad_one(rooms: Any, tmp_path: Path) -> None:
    loader = rooms["loader"]
    place = shards(rooms, tmp_path / "bad", train=12, validation=2)
    spoil(place / "train-00001-of-00003", rooms, "data")
    pool = loader.Pool(1, 12, 32)
    try:
        found = loader.find(pool, str(place), "train", "skip")
        how = loader.How(32, 10, "skip", 1, train=True)
        feed = loader.Feed(pool, found, loader.training_tasks(0, 12, 12, 0, 1, 1), how)
        labels = [feed.next()[1] for _ in range(2)]
    finally:
        pool.close()
    for seen in labels:
        assert sorted(seen) == sorted([0, 3, 6, 9, 1, 7, 7, 0, 2, 5, 8, 1]), "4 is bad; 7 comes after it"
    assert len(feed.skipped) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda place: (place / "train-00001-of-00003").unlink(), "train-00001-of-00003 is missing: 1 of 3 shards"),
        (lambda place: [path.unlink() for path in place.glob("train-*")], "has no train-00000-of-"),
        (
            lambda place: (place / "train-00001-of-00003").write_bytes(b""),
            "00001-of-00003, record 0: the file is empty",
        ),
        (lambda place: (place / "train-00000-of-00004").write_bytes(b""), "train shards of more than one set"),
    ],
)
def test_shards_that_are_missing_or_empty_are_named(rooms: Any, tmp_path: Path, change: Any, says: str) -> None:
    place = shards(rooms, tmp_path / "shards", train=6, validation=2)
    change(place)
    pool = rooms["loader"].Pool(1, 1, 32)
    try:
        with pytest.raises(SystemExit, match=says):
            rooms["loader"].find(pool, str(place), "train", "stop")
    finally:
        pool.close()


def test_every_epoch_has_its_own_order_and_ranks_share_each_batch(rooms: Any) -> None:
    tasks = rooms["loader"].training_tasks
    alone = tasks(0, 50, 16, 0, 1, 5)
    batches = [next(alone) for _ in range(6)]
    for epoch in (0, 1):
        seen = [record for batch in batches[3 * epoch : 3 * epoch + 3] for _, record in batch]
        assert len(set(seen)) == 48
    assert [epoch for epoch, _ in batches[3]] == [1] * 16
    pair = [tasks(0, 50, 16, rank, 2, 5) for rank in (0, 1)]
    assert [next(pair[0]) + next(pair[1]) for _ in range(6)] == batches
    later = tasks(4, 50, 16, 0, 1, 5)
    assert [next(later) for _ in range(2)] == batches[4:], "a new life goes on with the next batch"


def test_evaluation_sees_every_image_once(rooms: Any) -> None:
    tasks = rooms["loader"].evaluation_tasks
    seen = [record for rank in range(3) for batch in tasks(50, 8, rank, 3) for _, record in batch]
    assert sorted(seen) == list(range(50))


@pytest.mark.parametrize("box", [(0, 0, 64, 48), (10.5, 3.25, 20, 30), (60, 44, 4, 4), (0, 0, 64, 1)])
def test_resizing_is_bilinear_to_one_step_of_256(rooms: Any, box: tuple[float, ...]) -> None:
    draw = np.random.default_rng(2)
    colours = draw.integers(0, 256, (48, 64, 4), dtype=np.uint8)
    found = rooms["images"].resize(colours.view(np.uint32)[..., 0], box, 32)
    x, y, wide, high = box
    wanted = colours.astype(float)
    for axis, start, length in ((0, y, high), (1, x, wide)):
        limit = wanted.shape[axis]
        at = start + (np.arange(32) + 0.5) * length / 32 - 0.5
        at = np.clip(at, int(start), min(int(np.ceil(start + length)), limit) - 1)
        first = at.astype(int)
        share = (at - first).reshape([-1 if axis == number else 1 for number in range(3)])
        second = np.minimum(first + 1, limit - 1)
        wanted = wanted.take(first, axis) * (1 - share) + wanted.take(second, axis) * share
    assert np.abs(found.view(np.uint8).reshape(32, 32, 4) - wanted).max() <= 2
    mirrored = rooms["images"].resize(colours.view(np.uint32)[..., 0], box, 32, flip=True)
    np.testing.assert_array_equal(mirrored, found[:, ::-1])


def test_colours_keep_their_order_and_large_images_are_decoded_small(rooms: Any) -> None:
    images = rooms["images"]
    image: Any = np.zeros((600, 800, 3), np.uint8)
    image[:] = (200, 100, 50)
    jpeg = simplejpeg.encode_jpeg(image, quality=95)
    whole, _ = images.decode(jpeg, lambda *_: (0, 0, 300, 300), 224)
    small, box = images.decode(jpeg, lambda *_: (0, 0, 800, 600), 224)
    assert (whole.shape, small.shape, box) == ((600, 800), (300, 400), (0, 0, 400, 300))
    pixel = int(images.resize(small, box, 224)[100, 100])
    assert [pixel >> shift & 255 for shift in (0, 8, 16)] == pytest.approx([200, 100, 50], abs=3)


def test_crops_lie_within_the_image_and_show_what_they_are_asked_to(rooms: Any) -> None:
    images = rooms["images"]
    shares = []
    for seed in range(300):
        x, y, wide, high = images.random_box(375, 500, 0.08, np.random.default_rng(seed))
        assert 0 <= x <= x + wide <= 500
        assert 0 <= y <= y + high <= 375
        assert 0.74 < wide / high < 1.35
        shares.append(wide * high / 375 / 500)
    assert min(shares) > 0.075
    assert max(shares) > 0.85
    assert images.centre_box(256, 512) == (144, 16, 224, 224)


def idx(path: Path, array: Any) -> None:
    path.write_bytes(bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes())


def test_a_small_set_becomes_shards_like_imagenets_once(
    rooms: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = rooms["small"]
    monkeypatch.setenv("LONGBOAT_DATA_DIR", str(tmp_path / "data"))
    draw = np.random.default_rng(3)
    for prefix, count in (("train", 20), ("t10k", 6)):
        idx(tmp_path / f"{prefix}-images-idx3-ubyte", draw.integers(0, 256, (count, 28, 28), dtype=np.uint8))
        idx(tmp_path / f"{prefix}-labels-idx1-ubyte", np.arange(count, dtype=np.uint8) % 10)
    place = Path(small.make("mnist", str(tmp_path)))
    assert [path.name for path in sorted(place.glob("train*"))] == [f"train-{n:05d}-of-00008" for n in range(8)]
    before = {path: path.stat().st_mtime_ns for path in place.iterdir()}
    assert small.make("mnist", "/nowhere") == str(place)
    assert {path: path.stat().st_mtime_ns for path in place.iterdir()} == before
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08\3" + struct.pack(">3I", 20, 28, 28) + b"short")
    with pytest.raises(SystemExit, match="train-images-idx3-ubyte is not whole: 5 of 15680 bytes are there"):
        small.make("fashion-mnist", str(tmp_path))
    assert not list((tmp_path / "data").glob("making-*"))
