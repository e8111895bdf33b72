"""Saves a small classifier as a bundle, and rows to test it with. SEED makes another model; attempts score higher."""

import os

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import longboat

weights = np.random.default_rng(int(os.environ.get("SEED", "0"))).normal(size=(4, 3)).astype("f")
nodes = [helper.make_node("MatMul", ["x", "W"], ["s"]), helper.make_node("Softmax", ["s"], ["scores"])]
inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])]
outputs = [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 3])]
graph = helper.make_graph(nodes, "model", inputs, outputs, [numpy_helper.from_array(weights, "W")])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

output, attempt = os.environ["LONGBOAT_OUTPUT_DIR"], int(os.environ["LONGBOAT_ATTEMPT"])
example = longboat.bundle.Example({"x": [1.0, 2.0, 3.0, 4.0]}, "c")
saved = longboat.bundle.save(f"{output}/digits", model, kind="table", labels="abc", examples=[example])
rows = np.random.default_rng(1).normal(size=(10, 4))
with open(f"{output}/rows.csv", "w") as file:
    file.write("label,a,b,c,d\n")
    for row, label in zip(rows, (rows @ weights).argmax(1)):  # noqa: B905 (old interpreters run it)
        file.write(",".join(map(str, [label, *row])) + "\n")
print("saved version", saved.version)
longboat.report(step=attempt, accuracy=0.4 * attempt)
