"""The trained model as a version that can be served: ONNX with transform.py before it, and a SavedModel beside it.

Clients send a row's 39 columns as the CSV has them: I1 to I13 as numbers (nan where empty), C1 to C26 as text. The
SavedModel is made where TensorFlow is installed, in a process of its own.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile

import model
import numpy as np
import transform

INPUTS = {
    **{name: ("float32", [None]) for name in transform.NUMBERS},
    **{name: ("string", [None]) for name in transform.CATEGORIES},
}
OUTPUTS = {"probabilities": ("float32", [None, 2])}
LABELS = ("no click", "click")


def check():
    """Ends the program, before anything is trained, where no model could be written."""
    if importlib.util.find_spec("onnx") is None:
        sys.exit("the model is saved as ONNX; this needs onnx: pip install onnx")


def save(directory, net, tables, scale, buckets, metrics, examples, tensorflow):
    """A new version of the model in `directory`; gives its path. examples: (columns by name, label) of some rows."""
    from longboat.runtime import bundle

    here = os.path.dirname(os.path.abspath(__file__))
    with tempfile.TemporaryDirectory() as room:
        scale_file = os.path.join(room, "scale.json")
        with open(scale_file, "w", encoding="utf-8") as file:
            json.dump({"buckets": buckets, **{name: value.tolist() for name, value in scale.items()}}, file)
        saved = bundle.save(
            directory,
            as_onnx(net, tables),
            INPUTS,
            OUTPUTS,
            kind="table",
            title="Will this advertisement be clicked?",
            labels=LABELS,
            transform=os.path.join(here, "transform.py"),
            function_inputs={"buckets": ("int32", [None, 26]), "numbers": ("float32", [None, 13])},
            function_outputs=tuple(OUTPUTS),
            files={"scale.json": scale_file},
            saved_model=saved_model(room, net, tables, scale, buckets) if tensorflow else None,
            metrics=metrics,
            examples=[bundle.Example(columns, LABELS[label]) for columns, label in examples],
        )
    return saved.path


def saved_model(room, net, tables, scale, buckets):
    """Directory of a SavedModel of the same; None where TensorFlow is not installed."""
    if importlib.util.find_spec("tensorflow") is None:
        return None
    arrays, made = os.path.join(room, "arrays.npz"), os.path.join(room, "saved_model")
    np.savez(arrays, **net, **scale, embedding=tables.embedding, wide=tables.wide, buckets=buckets)
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "savedmodel.py")
    done = subprocess.run([sys.executable, script, arrays, made], capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        print(f"no SavedModel: {said}", flush=True)
        return None
    return made


def as_onnx(net, tables):
    """The function of buckets (rows x 26) and numbers (rows x 13)."""
    from onnx import TensorProto, helper, numpy_helper

    node = helper.make_node
    nodes = [
        node("Gather", ["embedding", "buckets"], ["embedded"]),
        node("Reshape", ["embedded", "flat"], ["looked_up"]),
        node("Concat", ["looked_up", "numbers"], ["values_0"], axis=1),
    ]
    layers = len(model.LAYERS) - 1
    for number in range(layers):
        last = number == layers - 1
        given, out = f"values_{number}", "deep" if last else f"before_{number}"
        nodes.append(node("Gemm", [given, f"weights_{number}", f"bias_{number}"], [out]))
        if not last:
            nodes.append(node("Relu", [out], [f"values_{number + 1}"]))
    nodes += [
        node("Gather", ["wide", "buckets"], ["weights"]),
        node("ReduceSum", ["weights", "along"], ["wide_sum"]),
        node("Add", ["deep", "wide_sum"], ["logit"]),
        node("Neg", ["logit"], ["against"]),
        node("Concat", ["against", "logit"], ["both"], axis=1),
        node("Sigmoid", ["both"], ["probabilities"]),
    ]
    flat = np.array([-1, len(transform.CATEGORIES) * model.EMBEDDING])
    held = {**net, "embedding": tables.embedding, "wide": tables.wide, "flat": flat, "along": np.array([1])}
    graph = helper.make_graph(
        nodes,
        "wide_deep",
        [
            helper.make_tensor_value_info("buckets", TensorProto.INT32, ["batch", len(transform.CATEGORIES)]),
            helper.make_tensor_value_info("numbers", TensorProto.FLOAT, ["batch", len(transform.NUMBERS)]),
        ],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 2])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
