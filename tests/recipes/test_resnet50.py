"""The recipe resnet50: its network, and its training by ranks that are killed and stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.commands import Said
from tests.local.place import Place, until
from tests.recipes.resnet50 import RECIPE, shards, spoil
from tests.recipes.resnet50 import data as data
from tests.recipes.resnet50 import rooms as rooms

PATIENCE = 240.0


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


def weights(place: Place) -> dict[str, Any]:
    with np.load(place.dir / "output/train/weights.npz") as file:
        return dict(file)


def reports(place: Place) -> list[dict[str, Any]]:
    return [point for event in place.events("rank.report") for point in event["points"]]


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
    undisturbed: tuple[Place, Said], longboat: Place, data: Path, compiled: dict[str, str], held: dict[str, str]
) -> None:
    command = longboat.begin("run", *job(data, "SHAPE=allreduce", "RANKS=2"), env=compiled | held)
    until(lambda: longboat.runs and longboat.events("checkpoint"), "a checkpoint", PATIENCE)
    started = [event for event in longboat.events("rank.started") if event["stage"] == "train" and event["rank"] == 1]
    os.kill(started[-1]["pid"], signal.SIGKILL)
    until(lambda: [e for e in longboat.events("checkpoint") if e["gen"] == 2], "a checkpoint after the kill", PATIENCE)
    longboat("stop", longboat.id)
    stopped = command.said(PATIENCE)
    if stopped.code:
        said = longboat("run", "--resume", longboat.id, env=compiled, timeout=PATIENCE)
        assert said.code == 0, said.err
    resumed = [event.get("resume_step", 0) for event in longboat.events("gen.started") if event["stage"] == "train"]
    assert len(resumed) > 1
    assert 0 == resumed[0] < resumed[1] < 120
    found, wanted = weights(longboat), weights(undisturbed[0])
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
    rooms: Any, longboat: Place, tmp_path: Path, compiled: dict[str, str]
) -> None:
    place = shards(rooms, tmp_path / "bad")
    spoil(place / "train-00002-of-00003", rooms, "label")
    said = longboat("run", *job(place, "SHAPE=allreduce", "RANKS=2"), env=compiled, timeout=PATIENCE)
    assert said.code == 1
    logs = longboat.log(0, stage="train") + longboat.log(1, stage="train")
    assert f"{place}/train-00002-of-00003, record 1: label 11 is not from 1 to 10 (--set BAD_DATA=skip" in logs


def test_what_cannot_be_is_refused_with_the_arithmetic(data: Path, tmp_path: Path) -> None:
    for words, says in (
        (["--batch", "15", "--group", "4"], "--group 4 does not divide the 15 images"),
        (["--image", "50"], "--image 50: the network halves an image five times; a multiple of 32 is wanted"),
        (["--input", "imagenet"], "--input imagenet: where are its shards? --set DATASET_DIR=DIR"),
    ):
        env = {name: value for name, value in os.environ.items() if not name.startswith("LONGBOAT")}
        command = [sys.executable, str(RECIPE / "train.py"), *words]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert says in done.stderr
        assert "Traceback" not in done.stderr


def test_changing_root_alone_moves_model_and_output(
    rooms: Any, longboat: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = longboat("plan", RECIPE / "job.yaml", "--set", f"ROOT={tmp_path}/nfs", "--json")
    assert said.code == 0, said.err
    for name, place in (("MODEL_DIR", "nfs/resnet50"), ("OUTPUT_DIR", "nfs/resnet50/output")):
        assert f'{tmp_path}/{place}"' in said.out
        monkeypatch.setenv(name, f"{tmp_path}/{place}")
    monkeypatch.setenv("LONGBOAT_RUN_ID", "resnet50-abc")
    monkeypatch.setenv("LONGBOAT_OUTPUT_DIR", "/run/output")
    monkeypatch.setenv("ROOT", "")
    assert rooms["train"].place_of("MODEL_DIR") == "/run/output"
    monkeypatch.setenv("ROOT", f"{tmp_path}/nfs")
    assert rooms["train"].place_of("MODEL_DIR") == f"{tmp_path}/nfs/resnet50/resnet50-abc"
    assert rooms["train"].place_of("OUTPUT_DIR") == f"{tmp_path}/nfs/resnet50/output/resnet50-abc"


def test_without_a_jpeg_library_one_message_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['simplejpeg'] = None; import images"
    done = subprocess.run([sys.executable, "-c", code], cwd=RECIPE, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("JPEG images need simplejpeg: pip install simplejpeg")
    assert "Traceback" not in done.stderr
