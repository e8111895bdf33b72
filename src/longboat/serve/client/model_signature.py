"""Signature of a model: names, types and shapes of inputs and outputs.

It is made from a bundle, from TensorFlow Serving's metadata or from the Open Inference Protocol's, so that building a
request does not depend on the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from longboat.runtime.errors import FAILED, LongboatError
from longboat.runtime.light_dataclasses import dataclass, replace
from longboat.serve.dtypes import BY_NAME

if TYPE_CHECKING:
    from longboat.runtime.bundle import Bundle, Example

Shape = tuple[int | None, ...]
DEFAULT = "serving_default"

TENSORFLOW = {kind.tf_name: kind.name for kind in BY_NAME.values()}
OPEN = {kind.oip: kind.name for kind in BY_NAME.values()}


@dataclass(frozen=True)
class TensorSpec:
    name: str
    dtype: str
    shape: Shape
    """The first dimension is the batch; None is free."""

    @property
    def size(self) -> int | None:
        """Number of values of one row; None if it is free."""
        sizes = self.shape[1:]
        return None if any(size is None for size in sizes) else prod(size for size in sizes if size is not None)

    def __str__(self) -> str:
        shape = ",".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.name} {self.dtype}[{shape}]"


@dataclass(frozen=True)
class Signature:
    model: str
    version: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    name: str = DEFAULT
    labels: tuple[str, ...] = ()
    binary: bool = False
    """The Open Inference server accepts binary tensors."""
    pixels: int = 1
    """Value of white in an image input: 1 or 255."""
    serialized: bool = False
    """The only input is a serialized tf.Example, as in an estimator's export."""


def of_bundle(bundle: Bundle) -> Signature:
    inputs, outputs = (
        tuple(TensorSpec(each.name, each.dtype, tuple(each.shape)) for each in side)
        for side in (bundle.inputs, bundle.outputs)
    )
    return with_examples(Signature(bundle.name, str(bundle.version), inputs, outputs), bundle.labels, bundle.examples)


def with_examples(signature: Signature, labels: Sequence[str], examples: Sequence[Example]) -> Signature:
    """The signature with class names and the value of white, which only the model's page has."""
    figures = examples[0].inputs.get(signature.inputs[0].name) if examples and signature.inputs else None
    bright = isinstance(figures, list) and _largest(figures) > 1.5
    return replace(signature, labels=tuple(map(str, labels)), pixels=255 if bright else 1)


def _largest(figures: Any) -> float:
    if isinstance(figures, list):
        return max(map(_largest, figures), default=0.0)
    return float(figures) if isinstance(figures, (int, float)) else 0.0


def of_tfs(model: str, document: Mapping[str, Any], wanted: str = "") -> Signature:
    """The signature from the response to GET /v1/models/NAME/metadata."""
    try:
        signatures: Mapping[str, Any] = document["metadata"]["signature_def"]["signature_def"]
        version = str(document.get("model_spec", {}).get("version", ""))
        name = choose(sorted(signatures), wanted)
        chosen = signatures[name]
        inputs = tuple(_tfs_tensor(key, value) for key, value in chosen["inputs"].items())
        outputs = tuple(_tfs_tensor(key, value) for key, value in chosen["outputs"].items())
        first = next(iter(chosen["inputs"].values()))["name"] if len(inputs) == 1 else ""
    except (KeyError, TypeError, AttributeError, ValueError, StopIteration) as error:
        raise not_understood(error) from None
    serialized = is_serialized(inputs, first, str(chosen.get("method_name", "")))
    return Signature(model, version, inputs, outputs, name, serialized=serialized)


def choose(names: Sequence[str], wanted: str) -> str:
    """The requested signature, else the default one, else the only one."""
    if wanted and wanted not in names:
        raise LongboatError(f"the model has no signature {wanted!r}", f"it has {', '.join(names) or 'none'}")
    usable = [name for name in names if not name.startswith("__")]
    if wanted or DEFAULT in names:
        return wanted or DEFAULT
    if len(usable) == 1:
        return usable[0]
    raise LongboatError("the model has several signatures", f"name one with --signature: {', '.join(usable)}")


def is_serialized(inputs: Sequence[TensorSpec], tensor: str, method: str) -> bool:
    """Whether the only input takes serialized tf.Examples, by TensorFlow's name for it."""
    if len(inputs) != 1 or inputs[0].dtype != "string":
        return False
    return tensor.startswith("input_example_tensor") or method.endswith(("/classify", "/regress"))


def of_v2(model: str, document: Mapping[str, Any], extensions: Sequence[str]) -> Signature:
    """The signature from the response to GET /v2/models/NAME."""
    try:
        inputs = tuple(_v2_tensor(each) for each in document["inputs"])
        outputs = tuple(_v2_tensor(each) for each in document["outputs"])
        versions = [str(each) for each in document.get("versions") or ()]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise not_understood(error) from None
    binary = any(each.startswith("binary_tensor_data") for each in extensions)
    return Signature(model, versions[-1] if versions else "", inputs, outputs, binary=binary)


def _tfs_tensor(name: str, info: Mapping[str, Any]) -> TensorSpec:
    shape = info.get("tensor_shape", {})
    if shape.get("unknown_rank"):
        sizes: Shape = (None,)
    else:
        sizes = tuple(None if int(dim["size"]) < 0 else int(dim["size"]) for dim in shape.get("dim") or ())
    return TensorSpec(name, _dtype(info["dtype"], TENSORFLOW), sizes)


def _v2_tensor(info: Mapping[str, Any]) -> TensorSpec:
    sizes = tuple(None if int(size) < 0 else int(size) for size in info["shape"])
    return TensorSpec(str(info["name"]), _dtype(info["datatype"], OPEN), sizes)


def _dtype(word: str, table: Mapping[str, str]) -> str:
    if word not in table:
        raise LongboatError(f"the model has a tensor of the unsupported type {word}", code=FAILED)
    return table[word]


def not_understood(error: Exception) -> LongboatError:
    what = f"{type(error).__name__}: {error}"
    return LongboatError(f"cannot parse the server's description of the model ({what})", code=FAILED)
