"""A model saved as a bundle, read back, damaged, and run by the real runtime."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file

from longboat.runtime import bundle
from longboat.runtime.driver.archive import archive_results
from longboat.runtime.driver.history import RunHistory
from longboat.runtime.errors import LongboatError

WEIGHTS = np.arange(784 * 10, dtype=np.float32).reshape(784, 10) / 7840


def linear() -> Any:
    """scores = image @ weights, as ONNX."""
    free: list[int | str] = ["batch"]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["image", "weights"], ["scores"])],
        "linear",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [*free, 784])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [*free, 10])],
        [numpy_helper.from_array(WEIGHTS, "weights")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def answer(saved: bundle.Bundle, **inputs: Any) -> list[Any]:
    return list(onnxruntime.InferenceSession(saved.function).run(None, inputs))


def test_an_onnx_model_is_saved_with_its_weights_once_and_runs(tmp_path: Path) -> None:
    saved = bundle.save(tmp_path / "digits", linear(), kind="image", labels=range(10), metrics={"accuracy": 0.5})
    assert bundle.read(saved.path) == saved
    assert saved.inputs == (bundle.Tensor("image", "float32", (None, 784)),)
    assert saved.labels[9] == "9"
    assert os.path.getsize(saved.function) < WEIGHTS.nbytes / 10
    np.testing.assert_array_equal(load_file(f"{saved.path}/weights.safetensors")["weights"], WEIGHTS)
    image: Any = np.ones((3, 784), np.float32)
    np.testing.assert_allclose(answer(saved, image=image)[0], image @ WEIGHTS, rtol=1e-5)


SAVED_WITH_JAX = """
import sys
import jax
from longboat import bundle

def scores(ids, scale):
    return jax.nn.softmax(weights[ids].sum(1) * scale)

weights = jax.numpy.arange(784 * 10, dtype="float32").reshape(784, 10) / 7840
inputs = {"ids": ("int32", [None, None]), "scale": ("float32", [None, 1])}
bundle.save(sys.argv[1], scores, inputs, {"scores": ("float32", [None, 10])})
"""


@pytest.mark.slow
def test_a_jax_function_is_saved_with_a_free_batch(tmp_path: Path) -> None:
    """In a process of its own: JAX's threads and tests that fork do not go together."""
    command = [sys.executable, "-c", SAVED_WITH_JAX, str(tmp_path / "words")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    saved = bundle.read(str(tmp_path / "words" / "1"))
    for rows, words in ((1, 4), (5, 2)):
        ids: Any = np.full((rows, words), 3, np.int32)
        scale: Any = np.ones((rows, 1), np.float32)
        powers = np.exp(WEIGHTS[ids].sum(1) * scale)
        expected = powers / powers.sum(1, keepdims=True)
        np.testing.assert_allclose(answer(saved, ids=ids, scale=scale)[0], expected, rtol=1e-5)


def test_a_number_is_not_given_again_when_the_versions_were_put_aside(tmp_path: Path) -> None:
    before = RunHistory(attempts={"train": 3})
    place = tmp_path / "output" / "train" / "linear"
    for _ in range(2):
        bundle.save(place, linear())
    archive_results(str(tmp_path), before, ["train"])
    assert (tmp_path / "superseded" / "train-3" / "output" / "linear" / "2" / "bundle.json").is_file()
    assert bundle.versions(str(place)) == ()
    assert bundle.save(place, linear()).version == 3


def test_versions_count_up_and_a_version_is_never_changed(tmp_path: Path) -> None:
    place = tmp_path / "digits"
    assert bundle.versions(str(place)) == ()
    first, second = bundle.save(place, linear()), bundle.save(place, linear())
    (place / "7").mkdir()  # not complete: no bundle.json
    assert (first.version, second.version, bundle.versions(str(place))) == (1, 2, (1, 2))
    assert bundle.save(place, linear()).version == 8
    with pytest.raises(ValueError, match="exists already"):
        bundle.save(place, linear(), version=2)


def test_the_remains_of_a_killed_save_are_cleared(tmp_path: Path) -> None:
    remains = tmp_path / "digits" / ".unfinished-1-4711"
    remains.mkdir(parents=True)
    bundle.save(tmp_path / "digits", linear())
    assert sorted(os.listdir(tmp_path / "digits")) == ["1"]


def test_a_save_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        bundle.save(tmp_path / "digits", linear(), files={"words.txt": str(tmp_path / "missing")})
    assert os.listdir(tmp_path / "digits") == []


def test_a_transform_and_its_files_travel_with_the_model(tmp_path: Path) -> None:
    (tmp_path / "before.py").write_text("class Transform: ...\n")
    (tmp_path / "words").write_text("a\nb\n")
    saved = bundle.save(
        tmp_path / "words-model",
        linear(),
        {"text": ("string", [None])},
        {"scores": ("float32", [None, 10])},
        kind="text",
        transform=str(tmp_path / "before.py"),
        files={"lists/words.txt": str(tmp_path / "words")},
        examples=[bundle.Example({"text": "good"}, "+")],
    )
    found = bundle.read(saved.path)
    assert found.transform == "transform.py"
    assert set(found.files) == {"function.onnx", "weights.safetensors", "transform.py", "files/lists/words.txt"}
    assert found.examples == (bundle.Example({"text": "good"}, "+"),)


@pytest.mark.parametrize("name", ["function.onnx", "weights.safetensors"])
def test_a_flipped_bit_a_short_file_and_a_missing_file_are_named(tmp_path: Path, name: str) -> None:
    saved = bundle.save(tmp_path / "digits", linear())
    path = Path(saved.path, name)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-1] ^= 1
    for bad, why in ((bytes(flipped), "contents differ"), (whole[:-1], "bytes, but was saved"), (None, "No such file")):
        if bad is None:
            path.unlink()
        else:
            path.write_bytes(bad)
        with pytest.raises(LongboatError, match=f"{name}.*{why}"):
            bundle.read(saved.path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"longboat_bundle": 9}, "schema 9"),
        ({"inputs": [{"name": "x", "dtype": "complex64", "shape": [None]}]}, "complex64"),
        ({"files": {"../x": {"size": 1, "sha256": ""}}}, "outside"),
        ({"transform": "transform.py"}, "not in its list of files"),
        ({"files": None}, "AttributeError"),
    ],
)
def test_a_wrong_manifest_is_refused_with_its_reason(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    saved = bundle.save(tmp_path / "digits", linear())
    path = Path(saved.path, "bundle.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(LongboatError, match=why):
        bundle.read(saved.path)


def test_no_bundle_here_is_said(tmp_path: Path) -> None:
    with pytest.raises(LongboatError, match=r"bundle\.json: No such file"):
        bundle.read(str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"kind": "sound"}, "sound"),
        ({"inputs": {"image": ("float32", [1, 784])}}, "batch"),
        ({"inputs": {"image": ("float128", [None, 784])}}, "float128"),
        ({"inputs": {"picture": ("float32", [None, 784])}}, "no 'picture'"),
        ({"inputs": {"image": ("int32", [None, 784])}}, "is float32"),
        ({"transform": "x.py"}, "pass the inputs"),
    ],
)
def test_a_wrong_description_is_refused(tmp_path: Path, arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        bundle.save(tmp_path / "digits", linear(), **arguments)


def test_onnx_itself_finds_nothing_wrong(tmp_path: Path) -> None:
    onnx.checker.check_model(bundle.save(tmp_path / "digits", linear()).function)
