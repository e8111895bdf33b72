"""The recipe qcnn: its circuit against Cirq, its training by two ranks through kills and stops, its predictions."""

from __future__ import annotations

import argparse
import importlib.util
import json
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

from tests.commands import Said
from tests.local.place import Place, until

RECIPE = Path(__file__).parents[2] / "recipes/qcnn"
CIRQ = Path(__file__).parent / "qcnn_cirq.json"
TINY = ("--examples", "480", "--epochs", "40")
PATIENCE = 240.0


def job(place: Place) -> tuple[str, ...]:
    return str(RECIPE / "job.yaml"), "--preset", "tiny", "--set", f"WEIGHTS={place.home / 'kept'}"


def script(name: str) -> Any:
    """A module of the recipe, which finds its neighbours as it does when it is run."""
    sys.path.insert(0, str(RECIPE))
    try:
        spec = importlib.util.spec_from_file_location(name, RECIPE / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(RECIPE))


ASK = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
import circuit

with open(sys.argv[1]) as file:
    draw = json.load(file)
given = [np.array(draw[name]) for name in ("weights", "qubit", "theta")]
state = np.asarray(jax.jit(circuit.final_state)(*given)).reshape(2, 256, -1)
found = {"state": state.T.tolist()}
gradient = jax.jit(jax.grad(lambda *given: jnp.sum(circuit.predictions(*given))))
found["gradient"] = [gradient(given[0], *(values[at : at + 1] for values in given[1:])).tolist() for at in (0, 1)]
examples = circuit.excitations(64, np.random.default_rng(2))
moved = given[0] + 0.3 * np.isin(np.arange(63), circuit.UNSEEN)
found["moved"] = [circuit.evaluate(weights, examples).tolist() for weights in (given[0], moved)]
print(json.dumps(found))
"""


def ask(precision: str) -> Any:
    """What the recipe's circuit says. In a process of its own: JAX's threads and tests that fork do not go together."""
    command = [sys.executable, "-c", ASK, str(CIRQ)]
    env = {**os.environ, "JAX_ENABLE_X64": "1" if precision == "double" else "0"}
    done = subprocess.run(command, cwd=RECIPE, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, compiled: dict[str, str]) -> Iterator[tuple[Place, Said]]:
    place = Place(tmp_path_factory.mktemp("undisturbed"))
    yield place, place("run", *job(place), env=compiled, timeout=PATIENCE)
    place.close()


def weights(place: Place) -> Any:
    with np.load(place.dir / "output/train/weights.npz") as file:
        return file["weights"]


@pytest.mark.parametrize(("precision", "state", "gradient"), [("double", 2e-9, 2e-8), ("single", 2e-6, 2e-5)])
def test_states_and_gradients_are_those_that_cirq_finds(precision: str, state: float, gradient: float) -> None:
    asked = ask(precision)
    found = json.loads(CIRQ.read_text())["found"]
    np.testing.assert_allclose(asked["state"], [example["state"] for example in found], atol=state)
    np.testing.assert_allclose(asked["gradient"], [example["gradient"] for example in found], atol=gradient)
    assert all(np.abs(example["gradient"]).max() > 0.1 for example in found), "the draw shows nothing"
    unseen = np.abs(asked["gradient"]).max(axis=0) < 1e-4
    assert np.flatnonzero(unseen).tolist() == [20, 41, 62], "no measurement sees these"
    still, moved = asked["moved"]
    np.testing.assert_allclose(moved, still, atol=1e-12 if precision == "double" else 1e-5)


def test_two_ranks_learn_to_tell_the_signs_of_examples_they_never_saw(undisturbed: tuple[Place, Said]) -> None:
    place, said = undisturbed
    assert said.code == 0, said.err
    points = [point for event in place.events("rank.report") for point in event["points"]]
    last = [point for point in points if point.get("total")][-1]
    assert last["step"] == last["total"] == 400
    assert last["accuracy"] >= 0.95
    assert 0.22 < last["mse"] < 0.3, "0.2268 is the least on average"
    with np.load(place.dir / "output/train/test.npz") as test:
        assert len(test["label"]) == 144
        assert (test["label"] == np.where(abs(test["theta"]) <= np.pi / 2, 1, -1)).all()


def test_logs_tell_of_each_epoch_and_of_the_profile_and_rank_0_alone_writes(undisturbed: tuple[Place, Said]) -> None:
    place, _ = undisturbed
    logs = [place.log(rank, stage="train") for rank in (0, 1)]
    for log in logs:
        assert re.findall(r"^epoch (\d+)/40: loss \d\.\d+, test mse", log, re.MULTILINE) == [
            str(epoch) for epoch in range(1, 41)
        ]
    for words in ("profiler: started at step 20", "profiler: ended after step 25", "weights in"):
        assert [words in log for log in logs] == [True, False]
    assert {event["rank"] for event in place.events("rank.report")} == {0}
    board = place.dir / "output/train/tensorboard"
    assert len(list(board.glob("events.out.tfevents.*"))) == 1
    assert len(list(board.glob("plugins/profile/*/*.xplane.pb"))) == 1


def test_predictions_of_the_stored_test_set_are_printed_with_labels_and_the_error(
    undisturbed: tuple[Place, Said],
) -> None:
    place, _ = undisturbed
    log = place.log(stage="predict")
    rows = re.findall(r"^ +(\d)  ([+-]\d\.\d{3})  +([+-]1)  +([+-]\d\.\d{4})$", log, re.MULTILINE)
    assert len(rows) == 144
    error = np.mean([(float(predicted) - float(label)) ** 2 for _, _, label, predicted in rows])
    told = place.events("rank.report")[-1]["points"][-1]
    assert told["mse"] == pytest.approx(error, abs=1e-3)
    assert f"144 examples, 0 skipped: mean squared error {told['mse']:.4f}" in log


def test_a_second_job_asks_the_weights_wherever_they_were_copied(
    undisturbed: tuple[Place, Said], longboat: Place, tmp_path: Path
) -> None:
    model = tmp_path / "kept"
    shutil.copytree(undisturbed[0].home / "kept" / undisturbed[0].id, model)
    said = longboat("run", RECIPE / "predict.yaml", "--set", f"MODEL={model}", timeout=PATIENCE)
    assert said.code == 0, said.err
    assert longboat.log(stage="predict") == undisturbed[0].log(stage="predict")


def test_a_killed_rank_and_a_stop_change_no_bit_of_the_weights(
    undisturbed: tuple[Place, Said], longboat: Place, compiled: dict[str, str], held: dict[str, str]
) -> None:
    command = longboat.begin("run", *job(longboat), env=compiled | held | {"HOLD_UNTIL_STOPPED": "1"})
    until(lambda: longboat.runs and longboat.events("checkpoint"), "a checkpoint", PATIENCE)
    os.kill(next(event["pid"] for event in longboat.events("rank.started") if event["rank"] == 1), signal.SIGKILL)
    until(lambda: [e for e in longboat.events("checkpoint") if e["gen"] == 2], "a checkpoint after the kill", PATIENCE)
    assert longboat("stop", longboat.id).code == 0
    command.said(PATIENCE)
    for rank in (0, 1):
        assert re.search(r"^asked to stop: stopped after step \d+ of 400$", longboat.log(rank, stage="train"), re.M)
    assert not (longboat.dir / "output/train/weights.npz").exists()
    said = longboat("run", "--resume", longboat.id, env=compiled, timeout=PATIENCE)
    assert said.code == 0, said.err
    resumed = [event.get("resume_step", 0) for event in longboat.events("gen.started") if event["stage"] == "train"]
    assert 0 == resumed[0] < resumed[1] < resumed[2] < 400
    np.testing.assert_array_equal(weights(longboat), weights(undisturbed[0]))


def test_one_process_without_longboat_finds_the_weights_of_two_ranks(
    undisturbed: tuple[Place, Said], tmp_path: Path
) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("LONGBOAT")}
    command = [sys.executable, str(RECIPE / "train.py"), *TINY]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "weights.npz") as alone:
        np.testing.assert_allclose(alone["weights"], weights(undisturbed[0]), rtol=1e-5)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"batch": 0}, "--batch 0 cannot be divided among 2 devices"),
        ({"batch": 31}, "--batch 31 cannot be divided among 2 devices"),
        ({"examples": 40}, "--examples 40: the 70% to train on do not fill one batch of 32"),
        ({"epochs": 0}, "--epochs 0 --checkpoint-every 5: both must be at least 1"),
    ],
)
def test_what_cannot_be_is_refused_with_the_arithmetic(changed: dict[str, int], says: str) -> None:
    args = argparse.Namespace(**{"batch": 32, "examples": 160, "epochs": 50, "checkpoint_every": 5, **changed})
    with pytest.raises(SystemExit) as ended:
        script("train").check(args, 2)
    assert ended.value.code == says


@pytest.mark.parametrize("profile", ["9-3", "0-3", "x", "-3"])
def test_steps_to_profile_that_are_no_range_are_refused(profile: str) -> None:
    train = script("train")
    with pytest.raises(SystemExit) as ended:
        train.Records(1, profile, None)
    assert ended.value.code == f"--profile {profile}: not a range of steps such as 20-30"


def examples(directory: Path, **changed: Any) -> None:
    columns = {"qubit": np.arange(4), "theta": np.full(4, 0.5), "label": np.ones(4), **changed}
    np.savez(directory / "test.npz", **columns)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"qubit": np.array([0, 1, 8, 3])}, "row 2: qubit is 8, not one of 0 to 7"),
        ({"theta": np.array([0, np.nan, 1, 2])}, "row 1: theta is nan, not an angle from -pi to pi"),
        ({"label": np.array([1, 1, 1, 0])}, "row 3: label is 0, neither 1 nor -1"),
    ],
)
def test_a_bad_row_stops_with_its_file_and_number_or_is_skipped_and_counted(
    changed: dict[str, Any], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predict = script("predict")
    examples(tmp_path, **changed)
    with pytest.raises(SystemExit, match=re.escape(f"{tmp_path / 'test.npz'}: {says}")):
        predict.read_examples(str(tmp_path), "stop")
    kept, skipped = predict.read_examples(str(tmp_path), "skip")
    assert skipped == 1
    assert {len(column) for column in kept.values()} == {3}
    assert says in capsys.readouterr().err


def test_files_that_are_missing_torn_or_of_another_kind_are_named(tmp_path: Path) -> None:
    predict = script("predict")
    place = str(tmp_path)
    with pytest.raises(SystemExit, match=r"weights.npz is not there; train first"):
        predict.read_weights(place)
    np.savez(tmp_path / "weights.npz", weights=np.zeros(62))
    with pytest.raises(SystemExit, match=r"weights.npz holds weights of shape \(62,\), not 63 of them"):
        predict.read_weights(place)
    whole = (tmp_path / "weights.npz").read_bytes()
    (tmp_path / "weights.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SystemExit, match=r"weights.npz cannot be read"):
        predict.read_weights(place)
    np.savez(tmp_path / "test.npz", theta=np.zeros(3), label=np.ones(3))
    with pytest.raises(SystemExit, match=r"test.npz has no array qubit; it must hold qubit, theta, label"):
        predict.read_examples(place, "skip")
    examples(tmp_path, label=np.ones(5))
    with pytest.raises(SystemExit, match=r"test.npz: qubit, theta and label have shapes \(4,\), \(4,\), \(5,\)"):
        predict.read_examples(place, "skip")
    examples(tmp_path, label=np.zeros(4))
    with pytest.raises(SystemExit, match=r"no row is good"):
        predict.read_examples(place, "skip")
