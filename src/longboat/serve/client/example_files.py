"""Reads files of examples: CSV, TSV, JSON, JSON lines, text, PNG, JPEG, MNIST's idx, NumPy's npz.

A table of readers, chosen by the file's name and first bytes. They return records with their positions; `rows` fits
them to a model.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from longboat.install_hint import install_command
from longboat.runtime.bundle import Example
from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import dataclass

Value = bool | int | float | str | list["Value"]
Label = int | float | str

NAMES_OF_LABELS = ("label", "labels", "clicked", "target", "class", "y")
LARGEST = 1 << 26
"""Maximum pixels of an image: a small file can declare a huge one."""
CRITEO = ("clicked", *(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27)))
"""Columns of Criteo's click logs, which have no header."""


@dataclass(frozen=True)
class TableRows:
    """Rows of a table, as text."""

    rows: list[list[str]]
    header: tuple[str, ...] = ()
    first_line: int = 1


@dataclass(frozen=True)
class JsonRows:
    """JSON values, one for each row."""

    rows: list[object]


@dataclass(frozen=True)
class TextRows:
    rows: list[str]


@dataclass(frozen=True)
class PixelImage:
    """Pixels from 0 to 255 as flat bytes, height x width x channels."""

    height: int
    width: int
    channels: int
    pixels: bytes


@dataclass(frozen=True)
class PixelImages:
    rows: list[PixelImage]
    labels: list[Label] | None = None


Records = TableRows | JsonRows | TextRows | PixelImages


def read(name: str, limit: int = 0) -> Records:
    """The records of the file, or of standard input if its name is `-`; at most `limit`, if not 0."""
    if name == "-":
        data = sys.stdin.buffer.read()
        return _parse(name, _unpacked(name, data), limit)
    path = Path(name)
    try:
        if path.is_dir():
            raise LongboatError(f"{name} is a directory, not a file of examples")
        if _suffix(path) in (".csv", ".tsv") and not path.name.endswith(".gz"):
            with open(path, encoding="utf-8-sig", newline="") as file:  # it may be much larger than needed
                return _cells(name, file, limit)
        return _parse(name, _unpacked(name, path.read_bytes()), limit)
    except FileNotFoundError:
        raise LongboatError(f"file {name} does not exist") from None
    except UnicodeDecodeError as error:
        raise LongboatError(f"{name} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise LongboatError(f"cannot read {name}: {error.strerror}") from None


def of_examples(examples: Iterable[Example]) -> JsonRows:
    """The example rows that were saved with a model."""
    return JsonRows(
        [
            {"inputs": dict(each.inputs)} if each.label is None else {"inputs": dict(each.inputs), "label": each.label}
            for each in examples
        ]
    )


def _suffix(path: Path) -> str:
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()


def _unpacked(name: str, data: bytes) -> bytes:
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError) as error:
        raise LongboatError(f"{name} is not valid: {error}") from None


def _parse(name: str, data: bytes, limit: int) -> Records:
    suffix = _suffix(Path(name))
    if data.startswith((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")):
        return PixelImages([_image(name, data)])
    if data[:4] == b"\0\0\x08\x03":
        return _idx(name, data, limit)
    if data.startswith(b"PK\x03\x04") and suffix == ".npz":
        return _npz(name, data, limit)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LongboatError(
            f"{name} is not UTF-8 text: {error.reason} at byte {error.start}",
            "use CSV, TSV, JSON, JSON lines, text, PNG, JPEG, MNIST's idx or npz",
        ) from None
    if suffix in (".csv", ".tsv"):
        return _cells(name, io.StringIO(text, newline=""), limit)
    if suffix in (".json", ".jsonl", ".ndjson") or (suffix != ".txt" and text.lstrip()[:1] in ("{", "[")):
        return _objects(name, text, limit)
    return TextRows(list(islice((line for line in text.splitlines() if line.strip()), limit or None)))


def _cells(name: str, file: Iterable[str], limit: int) -> TableRows:
    reader = csv.reader(file, delimiter="\t" if _suffix(Path(name)) == ".tsv" else ",")
    try:
        rows = list(islice(_filled(reader), limit + 1 if limit else None))
    except csv.Error as error:
        raise LongboatError(f"{name}:{reader.line_num}: {error}") from None
    if not rows:
        raise LongboatError(f"{name} has no rows")
    if _is_header(rows):
        return TableRows(rows[1:], tuple(cell.strip() for cell in rows[0]), 2)
    return TableRows(rows[:limit] if limit else rows)


def _filled(rows: Iterator[list[str]]) -> Iterator[list[str]]:
    return (row for row in rows if row)


def _is_header(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row is a header: names above numbers, or a label column."""
    first = rows[0]
    if any(_is_number(cell) for cell in first) or len(set(first)) < len(first):
        return False
    if any(cell.strip().lower() in NAMES_OF_LABELS for cell in first):
        return True
    return len(rows) > 1 and any(_is_number(cell) for cell in rows[1])


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _objects(name: str, text: str, limit: int) -> JsonRows:
    """One JSON document (a list, an object with `instances`, or one row), or one per line."""
    try:
        document = json.loads(text)
    except ValueError as whole:
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        rows: list[object] = []
        for number, line in lines[: limit or None]:
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                if number == lines[0][0] and not name.endswith((".jsonl", ".ndjson")):
                    raise LongboatError(f"{name} is not JSON: {whole}") from None
                raise LongboatError(f"{name}:{number}: not JSON: {error}") from None
        return JsonRows(rows)
    if isinstance(document, dict) and isinstance(document.get("instances"), list):
        document = document["instances"]
    if isinstance(document, dict) and isinstance(document.get("inputs"), dict) and "label" not in document:
        document = _columns(document["inputs"])
    rows = document if isinstance(document, list) else [document]
    return JsonRows(rows[:limit] if limit else rows)


def _columns(inputs: dict[str, object]) -> list[object]:
    """Rows from TensorFlow Serving's column format; a value that is not a list is a single row."""
    sizes = {len(value) for value in inputs.values() if isinstance(value, list)}
    if len(sizes) != 1 or not all(isinstance(value, list) for value in inputs.values()):
        return [{"inputs": inputs}]
    return [{key: value[i] for key, value in inputs.items() if isinstance(value, list)} for i in range(sizes.pop())]


def _idx(name: str, data: bytes, limit: int) -> PixelImages:
    """MNIST's format: images in this file, labels in the matching file beside it."""
    _, count, height, width = struct.unpack_from(">IIII", data)
    size = height * width
    if len(data) != 16 + count * size:
        raise LongboatError(f"{name} is not valid: {count} images of {height} x {width} need {16 + count * size} bytes")
    if limit:
        count = min(count, limit)
    rows = [PixelImage(height, width, 1, data[16 + i * size : 16 + (i + 1) * size]) for i in range(count)]
    beside = Path(name).with_name(Path(name).name.replace("images", "labels").replace("idx3", "idx1"))
    if beside == Path(name) or not beside.is_file():
        return PixelImages(rows)
    raw = _unpacked(str(beside), beside.read_bytes())
    if raw[:4] != b"\0\0\x08\x01" or len(raw) < 8 + count:
        raise LongboatError(f"{beside} is not a file of labels for {name}")
    return PixelImages(rows, list(raw[8 : 8 + count]))


def _image(name: str, data: bytes) -> PixelImage:
    """A PNG or JPEG: one channel if it is grey, else three. Transparent pixels become white."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise LongboatError(
            f"cannot read {name}: Pillow is not installed", install_command(packages=("pillow",))
        ) from None
    try:
        image: Image.Image = Image.open(io.BytesIO(data), formats=("PNG", "JPEG"))
        if image.width * image.height > LARGEST:
            raise LongboatError(f"{name} is too large: {image.width} x {image.height} pixels")
        if image.mode.startswith("I"):
            raise LongboatError(f"{name} has 16 bits per pixel", "save it with 8 bits")
        mode = "L" if image.mode in ("1", "L", "LA") else "RGB"
        if image.has_transparency_data:
            paper = Image.new("RGBA", image.size, "white")
            image = Image.alpha_composite(paper, image.convert("RGBA"))
        pixels = image.convert(mode).tobytes()
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise LongboatError(f"{name} is not a valid image: {error}") from None
    return PixelImage(image.height, image.width, len(mode), pixels)


def _npz(name: str, data: bytes, limit: int) -> JsonRows:
    """NumPy's archive: each array is a column, its first dimension the rows."""
    try:
        import numpy
    except ModuleNotFoundError:
        raise LongboatError(
            f"cannot read {name}: NumPy is not installed", install_command(packages=("numpy",))
        ) from None
    try:
        with numpy.load(io.BytesIO(data), allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except ValueError as error:
        raise LongboatError(f"cannot read {name}: {error}") from None
    counts = {len(array) for array in arrays.values() if array.ndim}
    if len(counts) != 1:
        raise LongboatError(f"{name} has arrays of different lengths: {sorted(counts)}")
    count = min(counts.pop(), limit or sys.maxsize)
    columns = {key: array[:count].tolist() for key, array in arrays.items()}
    return JsonRows([{key: column[i] for key, column in columns.items()} for i in range(count)])
