"""The recipe wide_deep: its reader, its law, two ranks through kills and missed gates, and the model that it leaves."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longboat.runtime import tensors
from tests.commands import Said
from tests.local.place import Place, until
from tests.ports import free_port

RECIPE = Path(__file__).parents[2] / "recipes/wide_deep"
BUCKETS = 200
PATIENCE = 240.0


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, Any]]:
    """The recipe's modules that need no framework."""
    names = ("transform", "metrics", "reader", "generate")
    before = {name: sys.modules.pop(name, None) for name in names}
    sys.path.insert(0, str(RECIPE))
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(RECIPE))
        for name in names:
            sys.modules.pop(name, None)
            if (module := before[name]) is not None:
                sys.modules[name] = module


@pytest.fixture(scope="module")
def rows(modules: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "train.csv"
    modules["generate"].write(str(path), 9000, 1, 0)
    return path


def row(label: str = "1", **fields: str) -> str:
    columns = {**{f"I{n}": str(n) for n in range(1, 14)}, **{f"C{n}": f"{n:08x}" for n in range(1, 27)}, **fields}
    return ",".join([label, *columns.values()])


def parsed(modules: dict[str, Any], path: Path, size: int = 1000, **options: Any) -> list[Any]:
    return [found for found, _ in modules["reader"].batches(str(path), size, BUCKETS, **options)]


def expected(modules: dict[str, Any], text: str, separator: str = ",") -> tuple[Any, Any, Any]:
    """Labels, numbers and buckets as Python's own csv module and one text at a time have them."""
    found = list(csv.reader(io.StringIO(text), delimiter=separator))
    numbers = [[float(field) if field else math.nan for field in fields[1:14]] for fields in found]
    transform = modules["transform"]
    buckets = [transform.buckets_of(*transform.words_of(np.array([fields[14:]])), BUCKETS)[0] for fields in found]
    return np.array([float(fields[0]) for fields in found]), np.array(numbers, np.float32), np.array(buckets)


def agrees(modules: dict[str, Any], path: Path, text: str, separator: str = ",") -> None:
    found = parsed(modules, path)
    labels, numbers, buckets = expected(modules, text, separator)
    np.testing.assert_array_equal(np.concatenate([part.labels for part in found]), labels)
    np.testing.assert_array_equal(np.concatenate([part.numbers for part in found]), numbers)
    np.testing.assert_array_equal(np.concatenate([part.buckets for part in found]), buckets)


def test_the_reader_reads_what_the_csv_module_reads(modules: dict[str, Any], rows: Path) -> None:
    agrees(modules, rows, rows.read_text())


ODD = [
    row(),
    row("0", I1="", I2="-2", I3="0.5", I4="-1e3", I5="123456789012", I6="-0", C1="", C2="a", C3="sixteen-bytes-ab"),
    row(I1="99999999", I2="-12345678", I13="00012", C26=""),
]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("separator", [",", "\t"])
@pytest.mark.parametrize("name", ["odd.csv", "odd.csv.gz"])
@pytest.mark.parametrize("last", [True, False], ids=["last-newline", "no-last-newline"])
def test_fractions_signs_empty_fields_and_line_ends_are_read(
    modules: dict[str, Any], tmp_path: Path, ending: str, separator: str, name: str, last: bool
) -> None:
    text = "\n".join(ODD).replace(",", separator)
    data = (text.replace("\n", ending) + ending * last).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    agrees(modules, tmp_path / name, text, separator)


def test_reading_goes_on_at_the_next_unread_row_wherever_it_stopped(modules: dict[str, Any], tmp_path: Path) -> None:
    generate, reader = modules["generate"], modules["reader"]
    for number, count in enumerate((700, 1, 6000)):
        generate.write(str(tmp_path / f"train-{number}.csv"), count, 1, number)
    pattern = str(tmp_path / "train-*.csv")
    whole = list(reader.batches(pattern, 256, BUCKETS, turns=2))
    assert [len(part) for part, _ in whole] == ([256] * 26 + [45]) * 2
    assert whole[26][1] == reader.Place(turn=2)
    for stopped in (0, 2, 3, 25, 26, 30):
        rest = list(reader.batches(pattern, 256, BUCKETS, place=whole[stopped][1], turns=2))
        assert len(rest) == len(whole) - stopped - 1
        for (found, place), (there, other) in zip(rest, whole[stopped + 1 :], strict=True):
            assert place == other
            np.testing.assert_array_equal(found.buckets, there.buckets)


def test_a_batch_that_ends_with_the_rows_ends_the_pass(modules: dict[str, Any], rows: Path) -> None:
    *_, (_, place) = modules["reader"].batches(str(rows), 3000, BUCKETS)
    assert place == modules["reader"].Place(turn=2)


def test_memory_does_not_grow_with_the_file(modules: dict[str, Any], rows: Path, tmp_path: Path) -> None:
    peaks = []
    for times in (2, 12):
        path = tmp_path / f"{times}.csv"
        path.write_bytes(rows.read_bytes() * times)
        tracemalloc.start()
        for _ in modules["reader"].batches(str(path), 256, BUCKETS):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]


BAD = {
    "39 columns instead of 40": row().rpartition(",")[0],
    "41 columns instead of 40": row() + ",more",
    "1 columns instead of 40": "",
    "clicked is '2'; it must be 0 or 1": row("2"),
    "clicked is 'clicked'; it must be 0 or 1": row("clicked"),
    "I7 is '1O', which is not a number": row(I7="1O"),
    "I1 is 'nan', which is not a number": row(I1="nan"),
    "I13 is '-', which is not a number": row(I13="-"),
    "C5 is 'seventeen-bytes-a', longer than 16 characters": row(C5="seventeen-bytes-a"),
    "a character that does not belong in such a file": row(C5='"a"'),
}


@pytest.mark.parametrize("why", BAD)
def test_a_bad_row_is_named_and_stops_or_is_skipped_and_counted(
    modules: dict[str, Any], rows: Path, tmp_path: Path, why: str
) -> None:
    good = rows.read_text().splitlines(keepends=True)[:40]
    path = tmp_path / "bad.csv"
    path.write_text("".join([*good[:17], BAD[why] + "\n", *good[17:]]))
    with pytest.raises(SystemExit, match=re.escape(f"{path}, row 18: {why}")):
        parsed(modules, path)
    said: list[str] = []
    batches = list(modules["reader"].batches(str(path), 16, BUCKETS, bad_rows="skip", say=said.append))
    assert sum(len(part) for part, _ in batches) == 40
    assert batches[-1][1].skipped == 1
    assert [place.row for _, place in batches] == [17, 34, 1]
    assert said == [f"{path}, row 18: {why}; bad rows are skipped and counted"] or why in said[0]


def test_files_that_are_missing_empty_or_cut_short_are_named(
    modules: dict[str, Any], rows: Path, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match=r"none\.csv does not exist"):
        parsed(modules, tmp_path / "none.csv")
    (tmp_path / "a.csv").write_text("")
    (tmp_path / "b.csv").write_bytes(rows.read_bytes())
    with pytest.raises(SystemExit, match=r"a\.csv is empty"):
        parsed(modules, tmp_path / "*.csv")
    assert sum(map(len, parsed(modules, tmp_path / "*.csv", bad_rows="skip"))) == 9000
    with pytest.raises(SystemExit, match=r"a\.csv has no good row"):
        parsed(modules, tmp_path / "a.csv", bad_rows="skip")
    packed = gzip.compress(rows.read_bytes())
    (tmp_path / "short.csv.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(SystemExit, match=r"short\.csv\.gz, behind byte \d+: .*; is the file whole\?"):
        parsed(modules, tmp_path / "short.csv.gz")
    (tmp_path / "flat.bin").write_bytes(b"x" * (3 << 20))
    with pytest.raises(SystemExit, match=r"no row ends within 1048576 bytes; is it CSV\?"):
        parsed(modules, tmp_path / "flat.bin")


def test_more_rows_of_a_law_begin_with_the_same_ones(modules: dict[str, Any], rows: Path, tmp_path: Path) -> None:
    modules["generate"].write(str(tmp_path / "more.csv"), 40000, 1, 0)
    with (tmp_path / "more.csv").open("rb") as more:
        assert more.read(len(rows.read_bytes())) == rows.read_bytes()


def test_auc_is_the_share_of_pairs_in_the_right_order(modules: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    clicked, likely = rng.random(200) < 0.3, rng.integers(0, 20, 200) / 20
    pairs = [(a > b) + 0.5 * (a == b) for a in likely[clicked] for b in likely[~clicked]]
    found = modules["metrics"].scores(clicked, likely)
    assert found.auc == pytest.approx(np.mean(pairs))
    assert found.always_no == pytest.approx(1 - clicked.mean())
    assert math.isnan(modules["metrics"].scores(np.ones(3), np.ones(3)).auc)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, compiled: dict[str, str]) -> Iterator[tuple[Place, Said]]:
    place = Place(tmp_path_factory.mktemp("undisturbed"))
    yield place, place("run", *job(), env=compiled, timeout=PATIENCE)
    place.close()


def job(*settings: str) -> tuple[str, ...]:
    chosen = (f"TF_SERVING_PORT={free_port()}", f"GRPC_PORT={free_port()}", *settings)
    return (str(RECIPE / "job.yaml"), "--preset", "tiny", *(word for s in chosen for word in ("--set", s)))


def weights(place: Place, version: int = 1) -> dict[str, Any]:
    path = place.dir / f"output/train/wide_deep/{version}/weights.safetensors"
    return dict(tensors.read(str(path))[0])


def evaluation(place: Place) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(place.output("evaluation.json", "train"))
    return found


def test_two_ranks_learn_and_all_figures_stand_in_one_line(undisturbed: tuple[Place, Said]) -> None:
    place, said = undisturbed
    assert said.code == 0, said.err
    told = re.search(
        r"^step 24: accuracy (\S+) \(always no: (\S+)\), AUC (\S+), log loss (\S+), 4000 rows$",
        place.log(stage="train"),
        re.M,
    )
    assert told is not None
    accuracy, always_no, auc, log_loss = map(float, told.groups())
    assert accuracy > always_no + 0.01
    assert 0.73 < auc < 0.86
    assert log_loss < 0.55
    assert evaluation(place)["accuracy"] == pytest.approx(accuracy, abs=1e-4)
    assert "good-enough passed" in said.err
    assert "step 24" not in place.log(1, stage="train")


def test_numbers_are_scaled_by_training_rows_alone(undisturbed: tuple[Place, Said], modules: dict[str, Any]) -> None:
    place, _ = undisturbed
    scale = json.loads((place.dir / "output/train/wide_deep/1/files/scale.json").read_text())
    _, numbers, _ = expected(modules, (place.dir / "output/data/train.csv").read_text())
    found = modules["transform"].logarithms(numbers).astype(np.float64)
    np.testing.assert_allclose(scale["mean"], np.nanmean(found, axis=0), rtol=1e-5)
    np.testing.assert_allclose(scale["deviation"], np.nanstd(found, axis=0), rtol=1e-5)


SERVED = """
import csv, json, math, sys
import numpy as np
from longboat.serve.model_loading import load
model = load(sys.argv[1])
with open(sys.argv[2]) as file:
    rows = list(csv.reader(file))
def column(place, dtype):
    if dtype == "string":
        return np.array([row[place] for row in rows], object)
    return np.array([float(row[place]) if row[place] else math.nan for row in rows], dtype)
inputs = {tensor.name: column(place, tensor.dtype) for place, tensor in enumerate(model.bundle.inputs, 1)}
found = model.run(inputs)["probabilities"]
said = [bool(row) == (label[0] == "1") for row, label in zip(found[:, 1] > 0.5, rows)]
print(json.dumps({"accuracy": np.mean(said), "sum": float(np.abs(found.sum(axis=1) - 1).max())}))
"""


def test_the_bundle_answers_rows_of_the_csv_as_the_training_scored_them(undisturbed: tuple[Place, Said]) -> None:
    place, _ = undisturbed
    words = [str(place.dir / "output/train/wide_deep/1"), str(place.dir / "output/data/eval.csv")]
    done = subprocess.run([sys.executable, "-c", SERVED, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["accuracy"] == pytest.approx(evaluation(place)["accuracy"], abs=3e-4)
    assert found["sum"] < 1e-5


def test_the_served_model_is_tested_with_rows_of_the_csv(undisturbed: tuple[Place, Said]) -> None:
    place, said = undisturbed
    points = [point for e in place.events("rank.report") if e["stage"] == "load-test" for point in e["points"]]
    told = {name: value for point in points for name, value in point.items()}
    assert told["accuracy"] > 0.7, said.err
    assert told["examples_per_s"] > 0


def test_a_killed_rank_changes_no_bit(
    undisturbed: tuple[Place, Said], longboat: Place, compiled: dict[str, str], held: dict[str, str]
) -> None:
    command = longboat.begin("run", *job(), env=compiled | held)
    until(lambda: longboat.runs and longboat.events("checkpoint"), "a checkpoint", PATIENCE)
    ranks = [event for event in longboat.events("rank.started") if event["stage"] == "train"]
    os.kill(next(event["pid"] for event in ranks if event["rank"] == 1), signal.SIGKILL)
    said = command.said(PATIENCE)
    assert said.code == 0, said.err
    resumed = [event.get("resume_step", 0) for event in longboat.events("gen.started") if event["stage"] == "train"]
    assert resumed[1:] == [8]
    left, right = weights(longboat), weights(undisturbed[0])
    assert left.keys() == right.keys()
    for name, value in left.items():
        np.testing.assert_array_equal(value, right[name], err_msg=name)
    assert evaluation(longboat) == evaluation(undisturbed[0])


def test_each_try_after_a_missed_gate_trains_on_new_rows(longboat: Place, compiled: dict[str, str]) -> None:
    often = job("TARGET_ACCURACY=0.99", "RETRY_LIMIT=1")
    said = longboat("run", *often, env=compiled, timeout=PATIENCE)
    assert said.code == 3, said.err
    begins = re.findall(r"from row (\d+)", longboat.log(stage="train"))
    assert begins == ["1", str(24 * 256 + 1)]
    assert (evaluation(longboat)["step"], evaluation(longboat)["next_row"]["row"]) == (48, 48 * 256 + 1)
    versions = sorted(path.name for path in (longboat.dir / "output/train/wide_deep").iterdir())
    assert versions == ["1", "2"]
    assert not np.array_equal(weights(longboat, 1)["wide"], weights(longboat, 2)["wide"])


def by_hand(*words: str | Path, cwd: Path, env: dict[str, str]) -> Said:
    """train.py as a program of its own, with nothing of Longboat around it."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("LONGBOAT")}
    command = [sys.executable, str(RECIPE / "train.py"), *map(str, words)]
    done = subprocess.run(command, cwd=cwd, env={**clean, **env}, capture_output=True, text=True, check=False)
    return Said(done.returncode, done.stdout, done.stderr)


def test_one_process_without_longboat_finds_the_weights_of_two_ranks(
    undisturbed: tuple[Place, Said], tmp_path: Path, compiled: dict[str, str]
) -> None:
    data = undisturbed[0].dir / "output/data"
    words = ("--data", data, "--steps", "24", "--batch", "256", "--hash-buckets", BUCKETS, "--saved-model", "no")
    said = by_hand(*map(str, words), cwd=tmp_path, env={**compiled, "NPROC": "1"})
    assert said.code == 0, said.err
    alone = tensors.read(str(tmp_path / "wide_deep/1/weights.safetensors"))[0]
    for name, value in weights(
        undisturbed[0]
    ).items():  # Adam turns rounding of tiny gradients into steps: seen as a whole
        assert np.linalg.norm(alone[name] - value) < 0.02 * np.linalg.norm(value), name
    found = json.loads((tmp_path / "evaluation.json").read_text())
    assert found["log_loss"] == pytest.approx(evaluation(undisturbed[0])["log_loss"], abs=1e-4)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--batch", "0"), "--batch 0: must be at least 1"),
        (("--steps", "-1"), "--steps -1: must be at least 0"),
        (("--data", "nowhere"), os.path.join("nowhere", "train.csv") + " does not exist"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    said = by_hand(*words, cwd=tmp_path, env={})
    assert said.code == 1
    assert said.err.strip().splitlines()[-1] == says


TENSORFLOW = """
import sys
import numpy as np, tensorflow as tf
sys.path.insert(0, sys.argv[2])
import transform
with np.load(sys.argv[1] + "/asked.npz", allow_pickle=True) as file:
    columns = {name: file[name] for name in file.files}
served = tf.saved_model.load(sys.argv[1] + "/made").signatures["serving_default"]
asked = {name: tf.constant(value.tolist() if value.dtype == object else value) for name, value in columns.items()}
np.save(sys.argv[1] + "/found.npy", served(**asked)["probabilities"].numpy())
"""


def test_the_savedmodel_hashes_and_answers_as_the_bundle_does(
    undisturbed: tuple[Place, Said], modules: dict[str, Any], tmp_path: Path
) -> None:
    version = undisturbed[0].dir / "output/train/wide_deep/1"
    arrays = tensors.read(str(version / "weights.safetensors"))[0]
    bundle_json = json.loads((version / "files/scale.json").read_text())
    given = {
        name: value for name, value in arrays.items() if name.startswith(("weights_", "bias_", "embedding", "wide"))
    }
    given.setdefault("bias_3", np.zeros(1, np.float32))
    np.savez(
        tmp_path / "arrays.npz",
        **given,
        mean=np.array(bundle_json["mean"], np.float32),
        deviation=np.array(bundle_json["deviation"], np.float32),
        buckets=BUCKETS,
    )
    transform = modules["transform"]
    chance = np.random.default_rng(2)
    numbers = {name: chance.integers(-2, 500, 50).astype(np.float32) for name in transform.NUMBERS}
    numbers["I3"][::4] = np.nan
    texts = {
        name: np.array([f"{v:08x}"[: v % 12] for v in chance.integers(0, 1 << 30, 50)], object)
        for name in transform.CATEGORIES
    }
    texts["C9"][:] = "sixteen-bytes-ab"
    np.savez(tmp_path / "asked.npz", **numbers, **texts)
    script = [sys.executable, str(RECIPE / "savedmodel.py"), str(tmp_path / "arrays.npz"), str(tmp_path / "made")]
    for command in (script, [sys.executable, "-c", TENSORFLOW, str(tmp_path), str(RECIPE)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    ready = transform.Transform(str(version)).before({**numbers, **texts})
    values = np.concatenate((given["embedding"][ready["buckets"]].reshape(50, -1), ready["numbers"]), axis=1)
    for layer in range(4):
        values = values @ given[f"weights_{layer}"] + given[f"bias_{layer}"]
        values = np.maximum(values, 0) if layer < 3 else values
    logit = values[:, 0] + given["wide"][ready["buckets"]].sum(axis=1)
    np.testing.assert_allclose(np.load(tmp_path / "found.npy")[:, 1], 1 / (1 + np.exp(-logit)), atol=1e-5)
