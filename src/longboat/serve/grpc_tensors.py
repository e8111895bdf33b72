"""Converts tensors in protobuf messages: TensorProto, tf.Example and the Open Inference Protocol's contents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from longboat.runtime.bundle import Tensor
from longboat.serve import input_checks
from longboat.serve.dtypes import BY_NAME, BY_TF
from longboat.serve.request_errors import invalid

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

_LIMIT = 1 << 40


def of_tfs(tensor: Tensor, given: Any) -> Array:
    """A TensorProto as an array; its type must be the model's."""
    kind = BY_NAME[tensor.dtype]
    if given.dtype != kind.tf:
        got = BY_TF[given.dtype].tf_name if given.dtype in BY_TF else f"data type {given.dtype}"
        raise invalid(f"input {tensor.name!r} expects {kind.tf_name}, got {got}")
    shape = [dim.size for dim in given.tensor_shape.dim]
    if given.tensor_shape.unknown_rank or any(not 0 <= length < _LIMIT for length in shape):
        raise invalid(f"input {tensor.name!r} has an unknown shape")
    content = given.tensor_content
    if content and tensor.dtype != "string":
        return input_checks.raw(tensor, content, shape)
    input_checks.fits(tensor, shape)
    count = math.prod(shape)
    values = getattr(given, kind.field)
    if len(values) != count and (len(values) == 0 or len(values) > count or tensor.dtype == "string"):
        raise invalid(f"input {tensor.name!r}: the shape {shape} holds {count} values, got {len(values)}")
    if count > len(values) and count > 1 << 26:
        raise invalid(f"input {tensor.name!r} needs {count} values, got {len(values)}")
    if tensor.dtype == "string":
        texts = [input_checks.decoded(tensor, value) for value in values]
        return input_checks.of_texts(tensor, texts, count).reshape(shape)
    flat: Array = _flat(tensor, values)
    if len(flat) < count:  # in TensorFlow the last value is repeated
        flat = np.concatenate([flat, np.full(count - len(flat), flat[-1], flat.dtype)])
    return flat.reshape(shape)


def _flat(tensor: Tensor, values: Any) -> Array:
    """A repeated field of numbers as an array of the model's type."""
    if tensor.dtype == "float16":
        bits: Array = _checked(tensor, np.array(values, np.int64), np.dtype(np.uint16))
        return bits.view(np.float16)
    wanted: np.dtype[Any] = np.dtype(tensor.dtype)
    if wanted.itemsize < 4 and wanted.kind in "iu":
        return _checked(tensor, np.array(values, np.int64), wanted)
    array: Array = np.array(values, wanted)
    return array


def _checked(tensor: Tensor, wide: Array, wanted: np.dtype[Any]) -> Array:
    limits = np.iinfo(wanted)
    if wide.size and (int(wide.min()) < limits.min or int(wide.max()) > limits.max):
        raise invalid(f"input {tensor.name!r} expects {tensor.dtype} ({limits.min} to {limits.max})")
    return wide.astype(wanted)


def to_tfs(array: Array, into: Any) -> None:
    """An output as TensorFlow Serving sends it: plain numbers in their repeated field, others as bytes."""
    kind = BY_NAME["string" if array.dtype.kind == "O" else array.dtype.name]
    into.dtype = kind.tf
    dims = into.tensor_shape.dim
    for length in array.shape:
        dims.add(size=length)
    if kind.name == "string":
        into.string_val.extend(each if isinstance(each, bytes) else str(each).encode() for each in array.ravel())
    elif kind.name == "float16":
        into.half_val.extend(array.view(np.uint16).ravel().tolist())
    else:
        getattr(into, kind.field).extend(array.ravel().tolist())


def describe(tensor: Tensor, into: Any) -> None:
    into.name = f"{tensor.name}:0"
    into.dtype = BY_NAME[tensor.dtype].tf
    into.tensor_shape.SetInParent()
    for length in tensor.shape:
        into.tensor_shape.dim.add(size=-1 if length is None else length)


def of_examples(wanted: Sequence[Tensor], given: Any) -> dict[str, Array]:
    """A list of tf.Example with a common context, as columns."""
    which = given.WhichOneof("kind")
    if which is None:
        raise invalid("the request has no examples")
    listed = getattr(given, which)
    if not listed.examples:
        raise invalid("the list of examples is empty: send at least one")
    context = listed.context.features.feature if which == "example_list_with_context" else {}
    inputs = {}
    for tensor in wanted:
        rows = []
        for number, example in enumerate(listed.examples):
            features = example.features.feature
            feature = features.get(tensor.name) or context.get(tensor.name)
            if feature is None:
                raise invalid(f"example {number} has no feature {tensor.name!r}")
            rows.append(_feature(tensor, feature, number))
        inputs[tensor.name] = input_checks.column(tensor, rows)
    return inputs


def _feature(tensor: Tensor, feature: Any, number: int) -> Any:
    """The value of one row: a scalar, or a list in the model's shape."""
    which = feature.WhichOneof("kind")
    values = list(getattr(feature, which).value) if which else []
    if which == "bytes_list":
        values = [input_checks.decoded(tensor, value) for value in values]
    lengths = tensor.shape[1:]
    if not lengths:
        if len(values) != 1:
            raise invalid(f"example {number}: {tensor.name!r} takes one value, got {len(values)}")
        return values[0]
    if len(lengths) == 1:
        return values
    if None in lengths or math.prod(length or 0 for length in lengths) != len(values):
        raise invalid(f"example {number}: {len(values)} values do not fill {input_checks.shown(lengths)}")
    flat: Array = np.empty(len(values), dtype=object)
    flat[:] = values
    return flat.reshape([length or 0 for length in lengths]).tolist()


def of_oip(wanted: Sequence[Tensor], request: Any) -> dict[str, Array]:
    """The inputs of a ModelInferRequest."""
    given = request.inputs
    raws = request.raw_input_contents
    if len(raws) and len(raws) != len(given):
        raise invalid(f"{len(given)} inputs have {len(raws)} raw contents: send one for each input, or none")
    names = [one.name for one in given]
    if len(set(names)) != len(names):
        raise invalid("duplicate input")
    input_checks.missing(wanted, names)
    inputs = {}
    for tensor in wanted:
        at = names.index(tensor.name)
        one = given[at]
        kind = BY_NAME[tensor.dtype]
        if one.datatype != kind.oip:
            raise invalid(f"input {tensor.name!r} expects the datatype {kind.oip}, got {one.datatype[:40]!r}")
        shape = list(one.shape)
        if any(not 0 <= length < _LIMIT for length in shape):
            raise invalid(f"input {tensor.name!r} has the invalid shape {shape}")
        if len(raws):
            inputs[tensor.name] = input_checks.raw(tensor, raws[at], shape)
            continue
        input_checks.fits(tensor, shape)
        if not kind.oip_field:
            raise invalid(f"input {tensor.name!r}: send {kind.oip} in raw_input_contents")
        inputs[tensor.name] = _contents(tensor, getattr(one.contents, kind.oip_field), shape)
    return inputs


def _contents(tensor: Tensor, values: Any, shape: list[int]) -> Array:
    count = math.prod(shape)
    if len(values) != count:
        raise invalid(f"input {tensor.name!r}: the shape {shape} holds {count} values, got {len(values)}")
    if tensor.dtype == "string":
        texts = [input_checks.decoded(tensor, value) for value in values]
        return input_checks.of_texts(tensor, texts, count).reshape(shape)
    return _flat(tensor, values).reshape(shape)


def to_oip(name: str, array: Array, answer: Any) -> None:
    """One output, as raw bytes."""
    kind = BY_NAME["string" if array.dtype.kind == "O" else array.dtype.name]
    answer.outputs.add(name=name, datatype=kind.oip, shape=array.shape)
    content = input_checks.packed_strings(array) if kind.name == "string" else array.tobytes()
    answer.raw_output_contents.append(content)
