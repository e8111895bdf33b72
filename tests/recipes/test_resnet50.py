"""The recipe resnet50: its files, its images, its network, and its training by ranks that are killed and stopped."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg

from tests.commands import Said
from tests.local.place import Place, until

RECIPE = Path(__file__).parents[2] / "recipes/resnet50"
PATIENCE = 240.0
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


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Runs after the first need not compile again what it compiled."""
    place = tmp_path_factory.mktemp("compiled")
    return {"JAX_COMPILATION_CACHE_DIR": str(place), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2"}


def job(data: Path, *more: str) -> list[str]:
    settings = ["INPUT=imagenet", f"DATASET_DIR={data}", "CLASSES=10", *more]
    return [str(RECIPE / "job.yaml"), "--preset", "tiny", *(word for one in settings for word in ("--set", one))]


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, data: Path, compiled: dict[str, str]
) -> Iterator[tuple[Place, Said]]:
    place = Place(tmp_path_factory.mktemp("undisturbed"))
    yield place, place("run", *job(data, "SHAPE=allreduce", "RANKS=2"), env=compiled, timeout=PATIENCE)
    place.close()


@pytest.fixture
def windlass(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    left = place.close()
    assert not left, "\n".join(["the test left behind:", *left])


def weights(place: Place) -> dict[str, Any]:
    with np.load(place.dir / "output/train/weights.npz") as file:
        return dict(file)


def reports(place: Place) -> list[dict[str, Any]]:
    return [point for event in place.events("rank.report") for point in event["points"]]


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
    monkeypatch.setenv("WINDLASS_DATA_DIR", str(tmp_path / "data"))
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


ASK = """
import json
import jax, jax.numpy as jnp, numpy as np
import fast, model, operations, step

draw = np.random.default_rng(0)
def some(*shape):
    return draw.normal(size=shape).astype(np.float32)

def apart(first, second, *given):
    g = jax.tree.map(lambda x: some(*x.shape), jax.eval_shape(first, *given))

    def all_of(one):
        result, back = jax.vjp(one, *given)
        return jax.tree.leaves((result, back(g)))

    pairs = zip(*jax.jit(lambda: (all_of(first), all_of(second)))())
    return max(float(np.linalg.norm(x - y) / np.linalg.norm(x)) for x, y in pairs)

class Watched(operations.Plain):
    halved = []
    def conv(self, x, kernel, stride=1):
        if stride == 2:
            self.halved.append(kernel.shape[0])
        return super().conv(x, kernel, stride)

plain, found = operations.Plain(), {}
for name, quick in (("xla", fast.Fast(kernels=False)), ("kernels", fast.Fast(interpret=True))):
    x, scale, offset, add = 2 * some(8, 6, 6, 32) + 1, some(32), some(32), some(8, 6, 6, 32)
    def norm(ops, **more):
        return lambda x, scale, offset, *add: ops.norm(x, scale, offset, add=add[0] if add else None, **more)[0]
    found[name] = {
        "norm": apart(norm(plain), norm(quick), x, scale, offset),
        "no relu": apart(norm(plain, relu=False), norm(quick, relu=False), x, scale, offset),
        "add": apart(norm(plain), norm(quick), x, scale, offset, add),
        "pool": apart(plain.max_pool, quick.max_pool, some(2, 16, 16, 8)),
        "stem": apart(plain.stem, quick.stem, some(2, 16, 16, 3), some(7, 7, 3, 8)),
    }
weights, statistics = model.new(1)
found["size"] = sum(value.size for value in weights.values())
found["layers"] = len(list(model.layers()))
found["not decayed"] = sorted({name.rsplit(".")[-1] for name in weights if not model.decays(name)})
look = lambda p: model.scores(weights, statistics, p, Watched())[0]
found["scores"] = jax.eval_shape(look, jnp.zeros((2, 224, 224), jnp.uint32)).shape
found["halved by"] = Watched.halved
found["rates"] = [step.rate_at(epoch, batch) for epoch, batch in
                  ((0, 256), (2.5, 256), (5, 256), (29.9, 512), (30, 256), (60, 256), (80, 256), (90, 256))]
scores, labels = some(4, 10), np.array([1, 2, 3, 4])
found["losses"] = step.losses(scores, labels).tolist()
soft = np.full((4, 10), 0.01) + 0.9 * np.eye(10)[labels]
logs = scores - np.log(np.exp(scores).sum(1, keepdims=True))
found["wanted"] = (-(soft * logs).sum(1)).tolist()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def network() -> Any:
    """What JAX says of the network. In a process of its own: JAX's threads and tests that fork do not go together."""
    done = subprocess.run([sys.executable, "-c", ASK], cwd=RECIPE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_network_is_resnet50(network: Any) -> None:
    assert network["size"] == 25_557_032
    assert network["layers"] == 53
    assert network["scores"] == [2, 1000]
    assert network["halved by"] == [7, 1, 3, 1, 3, 1, 3], "v1.5: a block halves in its 3x3 convolution and its shortcut"
    assert network["not decayed"] == ["offset", "scale"]


def test_the_learning_rate_warms_up_and_falls_to_a_tenth_four_times(network: Any) -> None:
    wanted = [0, 0.064, 0.128, 0.256, 0.0128, 0.00128, 0.000128, 0.0000128]
    assert network["rates"] == pytest.approx(wanted)


def test_a_tenth_of_each_label_is_spread_over_all_classes(network: Any) -> None:
    assert network["losses"] == pytest.approx(network["wanted"], rel=1e-5)


@pytest.mark.parametrize("kind", ["xla", "kernels"])
def test_the_fast_operations_mean_what_the_plain_ones_mean(network: Any, kind: str) -> None:
    assert max(network[kind].values()) < 1e-5, network[kind]


def test_two_ranks_learn_images_they_never_saw(undisturbed: tuple[Place, Said]) -> None:
    place, said = undisturbed
    assert said.code == 0, said.err
    told = reports(place)
    last = next(point for point in reversed(told) if "top1" in point)
    assert last["step"] == last["total"] == 120
    assert last["top1"] >= 0.6, "chance is 0.1"
    assert last["top5"] >= last["top1"]
    losses = [point["loss"] for point in told if "loss" in point]
    assert losses[-1] < losses[0]
    assert all(point["images_per_second"] > 0 for point in told if "loss" in point)
    assert {event["rank"] for event in place.events("rank.report")} == {0}
    assert json.loads(place.output("result.json", "train"))["top1"] == pytest.approx(last["top1"])


def test_a_killed_rank_and_a_stop_change_no_bit_of_the_weights(
    undisturbed: tuple[Place, Said], windlass: Place, data: Path, compiled: dict[str, str]
) -> None:
    command = windlass.begin("run", *job(data, "SHAPE=allreduce", "RANKS=2"), env=compiled)
    until(lambda: windlass.runs and windlass.events("checkpoint"), "a checkpoint", PATIENCE)
    started = [event for event in windlass.events("rank.started") if event["stage"] == "train" and event["rank"] == 1]
    os.kill(started[-1]["pid"], signal.SIGKILL)
    until(lambda: [e for e in windlass.events("checkpoint") if e["gen"] == 2], "a checkpoint after the kill", PATIENCE)
    windlass("stop", windlass.id)
    stopped = command.said(PATIENCE)
    if stopped.code:
        said = windlass("run", "--resume", windlass.id, env=compiled, timeout=PATIENCE)
        assert said.code == 0, said.err
    resumed = [event.get("resume_step", 0) for event in windlass.events("gen.started") if event["stage"] == "train"]
    assert len(resumed) > 1
    assert 0 == resumed[0] < resumed[1] < 120
    found, wanted = weights(windlass), weights(undisturbed[0])
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_mpi_allreduce_and_a_single_process_walk_the_same_path(
    tmp_path: Path, data: Path, compiled: dict[str, str]
) -> None:
    """Only for a few steps: training makes differences of rounding grow."""
    found = {}
    for shape in ("single", "mpi", "allreduce"):
        (tmp_path / shape).mkdir()
        place = Place(tmp_path / shape)
        ranks = "RANKS=1" if shape == "single" else "RANKS=2"
        said = place("run", *job(data, f"SHAPE={shape}", ranks, "STEPS=3"), env=compiled, timeout=PATIENCE)
        assert said.code == 0, said.err
        found[shape] = weights(place)
        assert not place.close()
    start = subprocess.run([sys.executable, "-c", START, str(tmp_path / "start.npz")], cwd=RECIPE, check=True)
    assert start.returncode == 0
    with np.load(tmp_path / "start.npz") as begun:
        moved = {name: np.linalg.norm(found["single"][name] - begun[name]) for name in begun}
    for shape in ("mpi", "allreduce"):
        for name, far in moved.items():
            apart = np.linalg.norm(found[shape][name] - found["single"][name])
            assert apart < 2e-3 * far + 1e-7, (shape, name, apart, far)


START = """
import sys
import model, numpy
weights, _ = model.new(1, 8, 10, (1, 1, 1, 1))
kept = ("stem.kernel", "stage2.block1.conv2.kernel", "stage4.block1.conv3.scale", "classes.kernel")
numpy.savez(sys.argv[1], **{f"weights/{name}": weights[name] for name in kept})
"""


def test_a_record_that_one_rank_cannot_use_ends_them_all_and_is_named(
    rooms: Any, windlass: Place, tmp_path: Path, compiled: dict[str, str]
) -> None:
    place = shards(rooms, tmp_path / "bad")
    spoil(place / "train-00002-of-00003", rooms, "label")
    said = windlass("run", *job(place, "SHAPE=allreduce", "RANKS=2"), env=compiled, timeout=PATIENCE)
    assert said.code == 1
    logs = windlass.log(0, stage="train") + windlass.log(1, stage="train")
    assert f"{place}/train-00002-of-00003, record 1: label 11 is not from 1 to 10 (--set BAD_DATA=skip" in logs


def test_what_cannot_be_is_refused_with_the_arithmetic(data: Path, tmp_path: Path) -> None:
    for words, says in (
        (["--batch", "15", "--group", "4"], "--group 4 does not divide the 15 images"),
        (["--image", "50"], "--image 50: the network halves an image five times; a multiple of 32 is wanted"),
        (["--input", "imagenet"], "--input imagenet: where are its shards? --set DATASET_DIR=DIR"),
    ):
        env = {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS")}
        command = [sys.executable, str(RECIPE / "train.py"), *words]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert says in done.stderr
        assert "Traceback" not in done.stderr


def test_changing_root_alone_moves_model_and_output(
    rooms: Any, windlass: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = windlass("plan", RECIPE / "job.yaml", "--set", f"ROOT={tmp_path}/nfs", "--json")
    assert said.code == 0, said.err
    for name, place in (("MODEL_DIR", "nfs/resnet50"), ("OUTPUT_DIR", "nfs/resnet50/output")):
        assert f'{tmp_path}/{place}"' in said.out
        monkeypatch.setenv(name, f"{tmp_path}/{place}")
    monkeypatch.setenv("WINDLASS_RUN_ID", "resnet50-abc")
    monkeypatch.setenv("WINDLASS_OUTPUT_DIR", "/run/output")
    monkeypatch.setenv("ROOT", "")
    assert rooms["train"].place_of("MODEL_DIR") == "/run/output"
    monkeypatch.setenv("ROOT", f"{tmp_path}/nfs")
    assert rooms["train"].place_of("MODEL_DIR") == f"{tmp_path}/nfs/resnet50/resnet50-abc"
    assert rooms["train"].place_of("OUTPUT_DIR") == f"{tmp_path}/nfs/resnet50/output/resnet50-abc"


def test_without_a_jpeg_library_one_message_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['simplejpeg'] = None; import images"
    done = subprocess.run([sys.executable, "-c", code], cwd=RECIPE, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("JPEG images need simplejpeg: pip install 'windlass[jpeg]'")
    assert "Traceback" not in done.stderr
