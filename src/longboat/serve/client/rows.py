"""Fits records of a file to a model's signature: rows to send, and their labels.

Columns match by name if the file has names, else by position. A record that does not fit is an error with its line;
nothing is silently cut or padded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import dataclass, field
from longboat.serve.client.example_files import (
    CRITEO,
    NAMES_OF_LABELS,
    JsonRows,
    Label,
    PixelImage,
    PixelImages,
    Records,
    TableRows,
    TextRows,
    Value,
)
from longboat.serve.client.model_signature import Signature, TensorSpec

Row = dict[str, Value]
NO_LABEL = "none"
_INTEGERS = ("int", "uint")
CATEGORIES = CRITEO[14:]
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d{1,2})?|nan")


@dataclass(frozen=True)
class Examples:
    rows: list[Row]
    labels: list[Label] | None
    notes: tuple[str, ...] = field(default=())
    """Notes for the user about how the file was read."""


def fit(records: Records, signature: Signature, source: str, label: str = "", empty: float = math.nan) -> Examples:
    """The rows of the records, in the model's shape.

    label: the column with the labels (a name, a number from 0, or `none`). empty: the value of an empty cell for float
    inputs; for integers it is 0."""
    if not records.rows:
        raise LongboatError(f"{source} has no rows")
    if isinstance(records, TableRows):
        return _cells(records, signature, source, label, empty)
    if isinstance(records, JsonRows):
        return _objects(records, signature, source, label)
    only = _only_input(signature, source)
    if isinstance(records, TextRows):
        if only.dtype != "string":
            raise LongboatError(f"{source} is text, but the model takes {only}", "use CSV, JSON or npz")
        return Examples([{only.name: line} for line in records.rows], None)
    return _images(records, only, signature.pixels, source)


def number_or_text(cell: str) -> Label:
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell


def _only_input(signature: Signature, source: str) -> TensorSpec:
    if len(signature.inputs) != 1:
        wanted = ", ".join(map(str, signature.inputs))
        raise LongboatError(f"{source} has one value per row, but the model takes {len(signature.inputs)}: {wanted}")
    return signature.inputs[0]


def _cells(records: TableRows, signature: Signature, source: str, label: str, empty: float) -> Examples:
    header = list(records.header)
    columns = len(header) or len(records.rows[0])
    if not header and columns == len(CRITEO):
        header = list(CRITEO)
    at = _label_column(header, columns, signature, source, label)
    if signature.serialized:
        plan = _features(records, header, columns, at)
    else:
        plan = _plan(header, columns, at, signature, source)
    blanks = 0
    rows: list[Row] = []
    labels: list[Label] = []
    for line, cells in enumerate(records.rows, records.first_line):
        if len(cells) != columns:
            raise LongboatError(f"{source}:{line} has {len(cells)} columns, the others have {columns}")
        row: Row = {}
        for tensor, places in plan:
            values: list[Value] = []
            for place in places:
                blanks += cells[place].strip() == "" and tensor.dtype != "string"
                column = header[place] if header else str(place)
                values.append(_value(cells[place], tensor, f"{source}:{line}", column, empty))
            row[tensor.name] = values[0] if len(tensor.shape) <= 1 else _shaped(values, tensor.shape[1:])
        rows.append(row)
        if at is not None:
            labels.append(number_or_text(cells[at].strip()))
    notes: tuple[str, ...] = ()
    if blanks and not signature.serialized:
        notes = (f"{blanks:,} empty cells were sent as {empty:g} (set another value with --empty)",)
    return Examples(rows, labels if at is not None else None, notes)


def _label_column(header: list[str], columns: int, signature: Signature, source: str, label: str) -> int | None:
    if label == NO_LABEL:
        return None
    if label:
        if label in header:
            return header.index(label)
        if label.isdigit() and int(label) < columns:
            return int(label)
        known = ", ".join(header) if header else f"numbers from 0 to {columns - 1}"
        raise LongboatError(f"{source} has no column {label!r} for the labels", f"it has {known}")
    taken = {tensor.name for tensor in signature.inputs}
    for place, name in enumerate(header):
        if name.lower() in NAMES_OF_LABELS and name not in taken:
            return place
    if header and taken <= set(header):
        return None
    need = _needed(signature)
    return 0 if need is not None and columns == need + 1 else None


def _needed(signature: Signature) -> int | None:
    total = 0
    for tensor in signature.inputs:
        if tensor.size is None:
            return None
        total += tensor.size
    return total


def _plan(
    header: list[str], columns: int, label: int | None, signature: Signature, source: str
) -> list[tuple[TensorSpec, list[int]]]:
    """Columns of each input."""
    inputs = signature.inputs
    if header and all(tensor.name in header and tensor.size == 1 for tensor in inputs):
        return [(tensor, [header.index(tensor.name)]) for tensor in inputs]
    free = [place for place in range(columns) if place != label]
    if len(inputs) == 1 and inputs[0].size is None and len(inputs[0].shape) == 2:
        return [(inputs[0], free)]
    need = _needed(signature)
    if need != len(free):
        wanted = ", ".join(map(str, inputs))
        truth = "no column for the label" if label is None else f"column {label} for the label"
        raise LongboatError(
            f"{source} has {columns} columns ({truth}), "
            f"but the model takes {need or 'another number of'} values: {wanted}",
            "add a header with the names of the inputs, or set the label column: --label NAME",
        )
    plan, at = [], 0
    for tensor in inputs:
        size = tensor.size or 0
        plan.append((tensor, free[at : at + size]))
        at += size
    return plan


def _features(
    records: TableRows, header: list[str], columns: int, label: int | None
) -> list[tuple[TensorSpec, list[int]]]:
    """Which columns of a tf.Example, which has no signature, are text: Criteo's categories, and columns with a cell
    that is not a number. (A hash such as 12e45678 looks like a number.)"""
    names = header or [str(place) for place in range(columns)]
    plan = []
    for place in range(columns):
        if place != label:
            plain = (cells[place].strip() for cells in records.rows if len(cells) == columns)
            is_text = names[place] in CATEGORIES or any(cell and not _NUMBER.fullmatch(cell) for cell in plain)
            plan.append((TensorSpec(names[place], "string" if is_text else "float64", (None,)), [place]))
    return plan


def _value(cell: str, tensor: TensorSpec, position: str, column: str, empty: float) -> Value:
    dtype = tensor.dtype
    if dtype == "string":
        return cell
    text = cell.strip()
    try:
        if dtype == "bool":
            return {"": False, "0": False, "1": True, "false": False, "true": True}[text.lower()]
        if dtype.startswith(_INTEGERS):
            return int(text or "0") if "." not in text else _whole(text)
        return float(text) if text else empty
    except (ValueError, KeyError):
        raise LongboatError(f"{position}: {cell!r} in column {column} is not {dtype}") from None


def _whole(text: str) -> int:
    value = float(text)
    if value != int(value):
        raise ValueError(text)
    return int(value)


def _objects(records: JsonRows, signature: Signature, source: str, label: str) -> Examples:
    rows: list[Row] = []
    labels: list[Label] = []
    names = {tensor.name for tensor in signature.inputs}
    for number, item in enumerate(records.rows, 1):
        given, truth = _split(item, names, label)
        if not isinstance(given, dict):
            given = {_only_input(signature, source).name: given}
        wanted = [TensorSpec(str(name), "example", ()) for name in given] if signature.serialized else signature.inputs
        if missing := [tensor.name for tensor in wanted if tensor.name not in given]:
            raise LongboatError(f"{source}: row {number} has no {', '.join(missing)}", f"it has {', '.join(given)}")
        rows.append({tensor.name: _fitted(given[tensor.name], tensor, source, number) for tensor in wanted})
        if truth is not None:
            labels.append(truth)
    if labels and len(labels) != len(rows):
        raise LongboatError(f"{source}: {len(labels)} of {len(rows)} rows have a label", "all must have one, or none")
    return Examples(rows, labels or None)


def _split(item: object, inputs: set[str], label: str) -> tuple[object, Label | None]:
    """The inputs of a row, and its label."""
    if not isinstance(item, dict):
        return item, None
    wanted = (label,) if label else tuple(name for name in NAMES_OF_LABELS if name not in inputs)
    truth = next((item[name] for name in wanted if name in item), None) if label != NO_LABEL else None
    inner = item.get("inputs") if "inputs" not in inputs else None
    given = inner if isinstance(inner, dict) else {k: v for k, v in item.items() if k not in wanted or k in inputs}
    return given, truth if isinstance(truth, (int, float, str)) else None


def _fitted(value: object, tensor: TensorSpec, source: str, number: int) -> Value:
    """The value in the tensor's shape. A flat list is reshaped; anything else must fit."""
    if isinstance(value, list) and len(tensor.shape) > 2 and not _nested(value) and len(value) == tensor.size:
        return _shaped(value, tensor.shape[1:])
    if not isinstance(value, (bool, int, float, str, list)):
        raise LongboatError(f"{source}: row {number}: {tensor.name} is {type(value).__name__}, not {tensor.dtype}")
    return value


def _nested(value: list[Value]) -> bool:
    return bool(value) and isinstance(value[0], list)


def _shaped(values: list[Value], shape: Sequence[int | None]) -> list[Value]:
    if len(shape) <= 1:
        return values
    head = shape[0] or 1
    step = len(values) // head
    return [_shaped(values[i * step : (i + 1) * step], shape[1:]) for i in range(head)]


def _images(records: PixelImages, tensor: TensorSpec, white: int, source: str) -> Examples:
    size = tensor.size
    rows: list[Row] = []
    scale = 1 if tensor.dtype.startswith(_INTEGERS) or white == 255 else 255
    for image in records.rows:
        if size is None or image.height * image.width * image.channels != size:
            image = _grey(image) if size is not None and image.height * image.width == size else image
        if image.height * image.width * image.channels != size:
            raise LongboatError(
                f"{source} has {image.height} x {image.width} pixels in {image.channels} channels; "
                f"the model takes {tensor}",
                "scale it first",
            )
        pixels: list[Value] = list(image.pixels) if scale == 1 else [value / scale for value in image.pixels]
        if len(tensor.shape) == 4 and tensor.shape[1] == image.channels and image.channels > 1:
            pixels = [pixels[i] for c in range(image.channels) for i in range(c, len(pixels), image.channels)]
        rows.append({tensor.name: _shaped(pixels, tensor.shape[1:])})
    note = () if scale == 1 else ("pixels were sent as 0 to 1",)
    return Examples(rows, records.labels, note)


def _grey(image: PixelImage) -> PixelImage:
    if image.channels != 3:
        return image
    p = image.pixels
    grey = bytes((299 * p[i] + 587 * p[i + 1] + 114 * p[i + 2]) // 1000 for i in range(0, len(p), 3))
    return PixelImage(image.height, image.width, 1, grey)
