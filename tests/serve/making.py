"""Models to serve: small, seeded, made with the `onnx` package and saved as a training script would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from longboat.runtime import bundle

DIGITS = tuple(str(digit) for digit in range(10))


def mlp(seed: int = 0, scale: float = 0.1) -> Any:
    """784-100-10 with a softmax: x -> probabilities."""
    chance = np.random.default_rng(seed)
    shapes = {"w1": (784, 100), "b1": (100,), "w2": (100, 10), "b2": (10,)}
    weights = {name: (chance.standard_normal(shape) * scale).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h1"]),
        helper.make_node("Relu", ["h1"], ["h2"]),
        helper.make_node("Gemm", ["h2", "w2", "b2"], ["h3"]),
        helper.make_node("Softmax", ["h3"], ["probabilities"], axis=-1),
    ]
    return _model(
        nodes, [("x", TensorProto.FLOAT, [None, 784])], [("probabilities", TensorProto.FLOAT, [None, 10])], weights
    )


def expected(seed: int, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What `mlp(seed)` answers, by numpy alone."""
    weights = {item.name: numpy_helper.to_array(item) for item in mlp(seed).graph.initializer}
    hidden = np.maximum(rows @ weights["w1"] + weights["b1"], 0)
    logits = hidden @ weights["w2"] + weights["b2"]
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    found: np.ndarray[Any, Any] = powers / powers.sum(axis=1, keepdims=True)
    return found


def digits(directory: Path, seed: int = 0, version: int | None = None) -> bundle.Bundle:
    """Saves a version of the MLP in a directory."""
    row = np.random.default_rng(1).random(784, dtype=np.float32).round(3).tolist()
    return bundle.save(
        directory,
        mlp(seed),
        kind="image",
        title="Digits",
        labels=DIGITS,
        metrics={"accuracy": 0.5},
        examples=[bundle.Example({"x": row}, "7", "noise")],
        version=version,
    )


def table(directory: Path) -> bundle.Bundle:
    """Two inputs of different types, two outputs: total = a + sum(b), twice = 2 a."""
    nodes = [
        helper.make_node("Cast", ["b"], ["bf"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["bf", "axes"], ["s"], keepdims=0),
        helper.make_node("Add", ["a", "s"], ["total"]),
        helper.make_node("Add", ["a", "a"], ["twice"]),
    ]
    return bundle.save(
        directory,
        _model(
            nodes,
            [("a", TensorProto.FLOAT, [None]), ("b", TensorProto.INT64, [None, 3])],
            [("total", TensorProto.FLOAT, [None]), ("twice", TensorProto.FLOAT, [None])],
            {"axes": np.array([1], np.int64)},
        ),
        kind="table",
    )


WORDS = """
import numpy as np

class Transform:
    def __init__(self, directory):
        self.words = open(directory + "/files/words.txt").read().split()

    def before(self, inputs):
        rows = [[text.lower().split().count(word) for word in self.words] for text in inputs["text"]]
        if any("kaboom" in text for text in inputs["text"]):
            raise ValueError("kaboom is not a word")
        return {"counts": np.array(rows, np.float32)}

    def after(self, outputs, inputs):
        good = outputs["good"].reshape(-1)
        label = np.array(["good" if p > 0.5 else "bad" for p in good], dtype=object)
        return {"probability": np.stack([1 - good, good], axis=1), "label": label}

    def explain(self, inputs):
        if any("kaboom" in text for text in inputs["text"]):
            raise ValueError("kaboom is not a word")
        return [[[word, 1.0] for word in text.lower().split() if word in self.words] for text in inputs["text"]]
"""


def words(directory: Path) -> bundle.Bundle:
    """Text in, a label and probabilities out, through a transform: counts of `good` less counts of `bad`."""
    nodes = [
        helper.make_node("MatMul", ["counts", "w"], ["z"]),
        helper.make_node("Sigmoid", ["z"], ["good"]),
    ]
    model = _model(
        nodes,
        [("counts", TensorProto.FLOAT, [None, 2])],
        [("good", TensorProto.FLOAT, [None, 1])],
        {"w": np.array([[2.0], [-2.0]], np.float32)},
    )
    directory.parent.mkdir(parents=True, exist_ok=True)
    source, vocabulary = directory.parent / "words_transform.py", directory.parent / "words.txt"
    source.write_text(WORDS)
    vocabulary.write_text("good bad")
    return bundle.save(
        directory,
        model,
        {"text": ("string", (None,))},
        {"probability": ("float32", (None, 2)), "label": ("string", (None,))},
        kind="text",
        labels=("bad", "good"),
        transform=str(source),
        files={"words.txt": str(vocabulary)},
        examples=[bundle.Example({"text": "a good one"}, "good")],
    )


def logarithm(directory: Path) -> bundle.Bundle:
    """y = log(x): NaN below zero, minus infinity at zero."""
    nodes = [helper.make_node("Log", ["x"], ["y"])]
    ends = [("x", TensorProto.FLOAT, [None, 2])], [("y", TensorProto.FLOAT, [None, 2])]
    return bundle.save(directory, _model(nodes, *ends, {}))


def heavy(directory: Path, width: int = 2000, layers: int = 4, times: int = 1) -> bundle.Bundle:
    """Slow enough that requests queue: `layers` square matrices, gone through so many times."""
    chance = np.random.default_rng(3)
    weights = {f"w{n}": (chance.standard_normal((width, width)) / width**0.5).astype(np.float32) for n in range(layers)}
    depth = layers * times
    names = ["x", *(f"h{n}" for n in range(depth - 1)), "y"]
    nodes = [helper.make_node("MatMul", [names[n], f"w{n % layers}"], [names[n + 1]]) for n in range(depth)]
    ends = [("x", TensorProto.FLOAT, [None, width])], [("y", TensorProto.FLOAT, [None, width])]
    return bundle.save(directory, _model(nodes, *ends, weights))


def greedy(directory: Path) -> bundle.Bundle:
    """y = n, by way of an array as long as the largest n of the batch: it takes as much memory as it is told to."""
    nodes = [
        helper.make_node("ReduceMax", ["n"], ["most"], keepdims=1),
        helper.make_node("ConstantOfShape", ["most"], ["zeros"]),
        helper.make_node("ReduceSum", ["zeros"], ["nothing"], keepdims=1),
        helper.make_node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["f", "nothing"], ["y"]),
    ]
    ends = [("n", TensorProto.INT64, [None])], [("y", TensorProto.FLOAT, [None])]
    return bundle.save(directory, _model(nodes, *ends, {}), examples=[bundle.Example({"n": 3})])


def _model(nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: dict[str, np.ndarray[Any, Any]]) -> Any:
    def infos(ends: list[Any]) -> list[Any]:
        return [
            helper.make_tensor_value_info(name, kind, ["batch" if length is None else length for length in shape])
            for name, kind, shape in ends
        ]

    held = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "made", infos(inputs), infos(outputs), held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.checker.check_model(model)
    return model
