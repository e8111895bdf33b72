"""Loads Keras files and TensorFlow SavedModels, which TensorFlow itself runs.

The signature is read from the model, so that all protocols work. Only this module imports TensorFlow, which is slow:
bundles are better to serve.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from longboat.install_hint import install_command
from longboat.runtime.bundle import Bundle, Tensor
from longboat.runtime.errors import LongboatError
from longboat.serve.model_loading import Runner, warm

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
    Arrays = dict[str, Array]

SERVING = "serving_default"


class TensorFlowRunner:
    """A TensorFlow function with named inputs and outputs."""

    explainer = None

    def __init__(self, bundle: Bundle, call: Callable[[Arrays], Arrays]) -> None:
        self.bundle, self._call = bundle, call
        self.seconds = 0.0

    def run(self, inputs: Any) -> Arrays:
        return self._call(inputs)


def load(path: str, name: str, version: int) -> Runner:
    """Load the model in this file or directory, and call it once."""
    tensorflow = _tensorflow(path)
    try:
        if os.path.isdir(path):
            ends, call = _saved_model(tensorflow, path)
        else:
            ends, call = _keras(tensorflow, path)
    except LongboatError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise LongboatError(f"{path}: TensorFlow cannot load it: {reason}") from None
    bundle = Bundle(name, version, path, _kind(ends[0]), name, ends[0], ends[1])
    runner = TensorFlowRunner(bundle, call)
    warm(runner)
    return runner


def _tensorflow(path: str) -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    try:
        with _silence():
            import tensorflow
    except ImportError as error:
        raise LongboatError(
            f"{path} needs TensorFlow, which is not installed ({error})",
            f"install it: {install_command('tensorflow')}",
        ) from None
    return tensorflow


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Hide what TensorFlow prints on stderr while it is imported."""
    kept, void = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(void, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(void)


def _keras(
    tensorflow: Any, path: str
) -> tuple[tuple[tuple[Tensor, ...], tuple[Tensor, ...]], Callable[[Arrays], Arrays]]:
    """A complete Keras model; a file with only weights has no function to call."""
    import keras

    model = keras.saving.load_model(path, compile=False, safe_mode=True)
    inputs = tuple(_described(tensor, tensor.name.split(":")[0]) for tensor in model.inputs)
    names = [f"output_{n}" if len(model.outputs) > 1 else "output" for n in range(len(model.outputs))]
    outputs = tuple(_described(tensor, name) for tensor, name in zip(model.outputs, names, strict=True))
    function = tensorflow.function(lambda *given: model(given if len(given) > 1 else given[0], training=False))

    def call(given: Arrays) -> Arrays:
        outputs = function(*(tensorflow.constant(given[tensor.name]) for tensor in inputs))
        outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        return {name: value.numpy() for name, value in zip(names, outputs, strict=True)}

    return (inputs, outputs), call


def _saved_model(
    tensorflow: Any, path: str
) -> tuple[tuple[tuple[Tensor, ...], tuple[Tensor, ...]], Callable[[Arrays], Arrays]]:
    loaded = tensorflow.saved_model.load(path)
    function = loaded.signatures.get(SERVING)
    if function is None:
        known = ", ".join(loaded.signatures) or "none"
        raise LongboatError(
            f"{path}: the SavedModel has no signature {SERVING!r}; it has {known}",
            "export it with `model.export(DIRECTORY)`, or with a signature of that name",
        )
    inputs = tuple(_described(spec, name) for name, spec in function.structured_input_signature[1].items())
    outputs = tuple(_described(spec, name) for name, spec in function.structured_outputs.items())

    def call(given: Arrays) -> Arrays:
        function = loaded.signatures[SERVING]  # through the object that holds its variables
        outputs = function(**{name: tensorflow.constant(value) for name, value in given.items()})
        return {name: _plain(value.numpy()) for name, value in outputs.items()}

    return (inputs, outputs), call


def _described(spec: Any, name: str) -> Tensor:
    dtype = spec.dtype if isinstance(spec.dtype, str) else spec.dtype.name
    shape = tuple(None if length is None else int(length) for length in spec.shape)
    return Tensor(name, dtype, shape)


def _plain(array: Array) -> Array:
    """An output as numpy array; TensorFlow returns strings as bytes."""
    if array.dtype.kind != "O":
        return array
    import numpy as np

    texts: Array = np.array([each.decode("utf-8", "replace") for each in array.ravel()], dtype=object)
    return texts.reshape(array.shape)


def _kind(inputs: tuple[Tensor, ...]) -> str:
    """The kind of page: text for one string, a form for short rows, else JSON."""
    if len(inputs) == 1 and inputs[0].dtype == "string":
        return "text"
    if len(inputs) == 1 and inputs[0].shape[1:] in ((784,), (28, 28), (28, 28, 1)):
        return "image"
    return "table" if all(len(tensor.shape) <= 2 for tensor in inputs) else "json"
