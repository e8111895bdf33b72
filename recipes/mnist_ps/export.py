"""The trained net as a version that can be served: ONNX, and a SavedModel for TensorFlow beside it."""

import os
import tempfile

import idx
import numpy as np
import tensorflow as tf

OUTPUT = os.environ.get("LONGBOAT_OUTPUT_DIR", ".")
INPUTS = {"image": ("float32", [None, idx.PIXELS])}
OUTPUTS = {"scores": ("float32", [None, idx.CLASSES])}


def check():
    """Ends the program, before anything is trained, where no model could be written."""
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise SystemExit("the model is saved as ONNX; this needs onnx: pip install onnx") from None


def save(arrays, metrics, images, labels):
    """A new version of the model in the output directory; gives its path. images, labels: some to try it with."""
    from longboat.runtime import bundle

    net = {name: arrays[name] for name in ("hidden.weights", "hidden.bias", "output.weights", "output.bias")}
    with tempfile.TemporaryDirectory() as room:
        saved = bundle.save(
            os.path.join(OUTPUT, "mnist"),
            as_onnx(net),
            INPUTS,
            OUTPUTS,
            kind="image",
            title="Which digit is this?",
            labels=range(idx.CLASSES),
            saved_model=saved_model(net, room),
            metrics=metrics,
            examples=[
                bundle.Example({"image": (image.astype(np.float32) / 255).round(4).tolist()}, str(label))
                for image, label in zip(images, labels, strict=True)
            ],
        )
    return saved.path


def saved_model(net, room):
    class Digits(tf.Module):
        def __init__(self):
            super().__init__()
            self.held = {name.replace(".", "_"): tf.Variable(value) for name, value in net.items()}

        @tf.function(input_signature=[tf.TensorSpec((None, idx.PIXELS), tf.float32, name="image")])
        def predict(self, image):
            hidden = tf.nn.relu(image @ self.held["hidden_weights"] + self.held["hidden_bias"])
            return {"scores": tf.nn.softmax(hidden @ self.held["output_weights"] + self.held["output_bias"])}

    digits, path = Digits(), os.path.join(room, "saved_model")
    tf.saved_model.save(digits, path, signatures=digits.predict)
    return path


def as_onnx(net):
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("Gemm", ["image", "hidden.weights", "hidden.bias"], ["before"]),
        helper.make_node("Relu", ["before"], ["hidden"]),
        helper.make_node("Gemm", ["hidden", "output.weights", "output.bias"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["scores"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "mnist",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", idx.PIXELS])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", idx.CLASSES])],
        [numpy_helper.from_array(value, name) for name, value in net.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
