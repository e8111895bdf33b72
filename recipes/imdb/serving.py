"""The averaged model as a bundle that `longboat serve` serves: a review in, two scores out."""

import os
import tempfile

import features

INPUTS = {"text": ("string", [None])}
OUTPUTS = {"scores": ("float32", [None, 2])}
LABELS = ("negative", "positive")
SHORT = 400
"""Letters of a review that is fit for an example."""


def save(directory, found, code, arrays, beside, metrics, texts, labels, length):
    """A new version of the model in `directory`. `beside`: where the features are."""
    try:
        from longboat.runtime import bundle
    except ImportError:
        raise SystemExit("saving a model needs Longboat: start this script with `longboat run`") from None
    function, inputs = bow(arrays) if found.model == "bow" else bigru(code, arrays, length)
    here = os.path.dirname(os.path.abspath(__file__))
    short = [i for i, text in enumerate(texts) if len(text) <= SHORT and "<" not in text] or range(len(texts))
    shown = [next((i for i in short if labels[i] == label), short[0]) for label in (1, 0)]
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(str(length))
        file.flush()
        return bundle.save(
            directory,
            function,
            INPUTS,
            OUTPUTS,
            kind="text",
            title="Is this film review kind?",
            labels=LABELS,
            transform=os.path.join(here, "transform.py"),
            function_inputs=inputs,
            function_outputs=tuple(OUTPUTS),
            files={
                "features.py": os.path.join(here, "features.py"),
                "length": file.name,
                **{name: os.path.join(beside, name) for name in features.FILES},
            },
            metrics=metrics,
            examples=[bundle.Example({"text": texts[i]}, LABELS[int(labels[i])]) for i in shown],
        )


def bow(arrays):
    """The sum of the weights of a row's n-grams, each times its input; as ONNX."""
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("Gather", ["weights", "ids"], ["weight"]),
        helper.make_node("Mul", ["weight", "values"], ["weighed"]),
        helper.make_node("ReduceSum", ["weighed", "along"], ["sum"]),
        helper.make_node("Add", ["sum", "bias"], ["score"]),
        helper.make_node("Neg", ["score"], ["against"]),
        helper.make_node("Concat", ["against", "score"], ["both"], axis=1),
        helper.make_node("Sigmoid", ["both"], ["scores"]),
    ]
    held = {"weights": arrays["weights"], "bias": arrays["bias"], "along": features.np.array([1])}
    kinds = {"ids": TensorProto.INT32, "values": TensorProto.FLOAT}
    graph = helper.make_graph(
        nodes,
        "bow",
        [helper.make_tensor_value_info(name, kind, ["batch", "length"]) for name, kind in kinds.items()],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 2])],
        [numpy_helper.from_array(value, name) for name, value in held.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return model, {"ids": ("int32", [None, None]), "values": ("float32", [None, None])}


def bigru(code, arrays, length):
    return code.both(arrays), {"ids": ("int32", [None, length])}
