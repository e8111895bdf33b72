"""Format of a model version: what its directory holds, and how it is read and checked.

A model is a directory; its versions are numbered directories in it, as in TensorFlow Serving:

    sentiment/1/bundle.json           what this is; a version without it does not exist
                function.onnx         the function, without its large arrays
                weights.safetensors   the large arrays
                transform.py          optional: code that runs before and after the function
                files/                files for the transform
                saved_model.pb ...    optional: the same model for TensorFlow

bundle.json lists every file with its size and SHA-256, including those of a SavedModel that existed when it was saved.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Dict, List, Mapping, Optional, Tuple

from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import dataclass, field

SCHEMA = 1
MANIFEST = "bundle.json"
FUNCTION = "function.onnx"
WEIGHTS = "weights.safetensors"
TRANSFORM = "transform.py"
FILES = "files"

KINDS = ("text", "image", "table", "json")
"""How people use the model: decides the page that a server shows for it."""

DTYPES = (
    "float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
    "string",
)  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """One input or output as a client sees it. None in a shape: any length. The first dimension is the batch."""

    name: str
    dtype: str
    shape: Tuple[Optional[int], ...]
    help: str = ""


@dataclass(frozen=True)
class Example:
    """One example row for the model."""

    inputs: Mapping[str, Any]
    label: Any = None
    note: str = ""


@dataclass(frozen=True)
class Bundle:
    """A version of a model."""

    name: str
    version: int
    path: str
    kind: str = "json"
    title: str = ""
    inputs: Tuple[Tensor, ...] = ()
    outputs: Tuple[Tensor, ...] = ()
    labels: Tuple[str, ...] = ()
    transform: str = ""
    """File name of the transform; empty: none."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    examples: Tuple[Example, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Tuple[int, str]] = field(default_factory=dict)
    """Relative path -> size and SHA-256."""

    @property
    def function(self) -> str:
        """Path of the ONNX file."""
        return os.path.join(self.path, FUNCTION)

    @property
    def size(self) -> int:
        return sum(size for size, _ in self.files.values())


def versions(directory: str) -> Tuple[int, ...]:
    """The complete versions of a model, ascending."""
    try:
        names = os.listdir(directory)
    except OSError:
        return ()
    numbers = [int(n) for n in names if n.isdecimal() and os.path.isfile(os.path.join(directory, n, MANIFEST))]
    return tuple(sorted(numbers))


def read(path: str, verify: bool = True) -> Bundle:
    """Read the version in this directory. Raises LongboatError with the file that is missing or damaged."""
    path = os.path.abspath(path)
    manifest = os.path.join(path, MANIFEST)
    try:
        with open(manifest, encoding="utf-8") as file:
            manifest_data = json.load(file)
    except OSError as error:
        raise LongboatError(
            f"{manifest}: {error.strerror}", "a model version is a directory with a bundle.json in it"
        ) from None
    except ValueError as error:
        raise _damaged(manifest, f"not JSON: {error}") from None
    try:
        bundle = _of(manifest_data, path)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(manifest, f"{type(error).__name__}: {error}") from None
    if verify:
        for name, (size, digest) in bundle.files.items():
            _verify(os.path.join(path, name), size, digest)
    return bundle


def digest_of(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def as_json(bundle: Bundle) -> Dict[str, Any]:
    """What bundle.json holds."""
    return {
        "longboat_bundle": SCHEMA,
        "name": bundle.name,
        "version": bundle.version,
        "kind": bundle.kind,
        "title": bundle.title,
        "inputs": [_tensor_json(tensor) for tensor in bundle.inputs],
        "outputs": [_tensor_json(tensor) for tensor in bundle.outputs],
        "labels": list(bundle.labels),
        "function": FUNCTION,
        "transform": bundle.transform or None,
        "metrics": dict(bundle.metrics),
        "examples": [{"inputs": dict(e.inputs), "label": e.label, "note": e.note} for e in bundle.examples],
        "provenance": dict(bundle.provenance),
        "files": {name: {"size": size, "sha256": digest} for name, (size, digest) in sorted(bundle.files.items())},
    }


def tensors(given: Any, where: str) -> Tuple[Tensor, ...]:
    """Check inputs or outputs as a script passes them: {name: (dtype, shape)}, or Tensors."""
    if isinstance(given, Mapping):
        given = [Tensor(name, str(dtype), tuple(shape)) for name, (dtype, shape) in given.items()]
    checked: List[Tensor] = []
    for tensor in given:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{where}: {tensor!r} is not a longboat.bundle.Tensor")
        if tensor.dtype not in DTYPES:
            raise ValueError(f"{where}: {tensor.name} has the unknown dtype {tensor.dtype!r}; use {', '.join(DTYPES)}")
        if not tensor.shape or tensor.shape[0] is not None:
            raise ValueError(f"{where}: the first dimension of {tensor.name} is the batch and must be None")
        checked.append(tensor)
    return tuple(checked)


def _of(data: Mapping[str, Any], path: str) -> Bundle:
    if data["longboat_bundle"] != SCHEMA:
        schema = data["longboat_bundle"]
        raise ValueError(f"it has bundle schema {schema}; this Longboat reads schema {SCHEMA}")
    files = {str(name): (int(f["size"]), str(f["sha256"])) for name, f in data["files"].items()}
    for name in files:
        if os.path.isabs(name) or ".." in name.split("/"):
            raise ValueError(f"{name!r} is outside of the bundle")
    for needed in (FUNCTION, data.get("transform")):
        if needed and needed not in files:
            raise ValueError(f"{needed} is not in its list of files")
    return Bundle(
        name=str(data["name"]),
        version=int(data["version"]),
        path=path,
        kind=str(data["kind"]),
        title=str(data.get("title", "")),
        inputs=tuple(_tensor(t) for t in data["inputs"]),
        outputs=tuple(_tensor(t) for t in data["outputs"]),
        labels=tuple(str(label) for label in data.get("labels", ())),
        transform=str(data.get("transform") or ""),
        metrics={str(k): float(v) for k, v in data.get("metrics", {}).items()},
        examples=tuple(Example(e["inputs"], e.get("label"), e.get("note", "")) for e in data.get("examples", ())),
        provenance={str(k): str(v) for k, v in data.get("provenance", {}).items()},
        files=files,
    )


def _tensor(data: Mapping[str, Any]) -> Tensor:
    shape = tuple(None if length is None else int(length) for length in data["shape"])
    if data["dtype"] not in DTYPES:
        raise ValueError(f"{data['name']} has the unknown dtype {data['dtype']!r}")
    return Tensor(str(data["name"]), str(data["dtype"]), shape, str(data.get("help", "")))


def _tensor_json(tensor: Tensor) -> Dict[str, Any]:
    data: Dict[str, Any] = {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape)}
    return {**data, "help": tensor.help} if tensor.help else data


def _verify(path: str, size: int, digest: str) -> None:
    try:
        actual = os.path.getsize(path)
    except OSError as error:
        raise _damaged(path, error.strerror or "cannot be read") from None
    if actual != size:
        raise _damaged(path, f"it has {actual} bytes, but was saved with {size}")
    if digest_of(path) != digest:
        raise _damaged(path, "its contents differ from what was saved")


def _damaged(path: str, why: str) -> LongboatError:
    return LongboatError(f"{path}: {why}", "the model is damaged: serve another version, or save it again")
