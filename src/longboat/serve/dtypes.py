"""Table of element types with their names in numpy, TensorFlow and the Open Inference Protocol."""

from __future__ import annotations

from longboat.runtime.light_dataclasses import dataclass


@dataclass(frozen=True)
class ElementType:
    """One element type and its names."""

    name: str
    """numpy's name, or `string`."""
    tf: int
    tf_name: str
    oip: str
    field: str
    """Field of a TensorFlow TensorProto for such values, if they are not in tensor_content."""
    oip_field: str
    """Field of an InferTensorContents for them; empty: only raw bytes."""


_TABLE = (
    ElementType("float32", 1, "DT_FLOAT", "FP32", "float_val", "fp32_contents"),
    ElementType("float64", 2, "DT_DOUBLE", "FP64", "double_val", "fp64_contents"),
    ElementType("int32", 3, "DT_INT32", "INT32", "int_val", "int_contents"),
    ElementType("uint8", 4, "DT_UINT8", "UINT8", "int_val", "uint_contents"),
    ElementType("int16", 5, "DT_INT16", "INT16", "int_val", "int_contents"),
    ElementType("int8", 6, "DT_INT8", "INT8", "int_val", "int_contents"),
    ElementType("string", 7, "DT_STRING", "BYTES", "string_val", "bytes_contents"),
    ElementType("int64", 9, "DT_INT64", "INT64", "int64_val", "int64_contents"),
    ElementType("bool", 10, "DT_BOOL", "BOOL", "bool_val", "bool_contents"),
    ElementType("uint16", 17, "DT_UINT16", "UINT16", "int_val", "uint_contents"),
    ElementType("float16", 19, "DT_HALF", "FP16", "half_val", ""),
    ElementType("uint32", 22, "DT_UINT32", "UINT32", "uint32_val", "uint_contents"),
    ElementType("uint64", 23, "DT_UINT64", "UINT64", "uint64_val", "uint64_contents"),
)

BY_NAME = {kind.name: kind for kind in _TABLE}
BY_TF = {kind.tf: kind for kind in _TABLE}
