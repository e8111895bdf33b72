"""What a version of a model holds, and how it is read back.

A model is a directory, its versions are numbered directories in it, as TensorFlow Serving has them:

    sentiment/1/bundle.json           what this is; a version without it does not exist
                function.onnx         the function; its large arrays lie in
                weights.safetensors   and nowhere else
                transform.py          optional: what happens before and after the function
                files/                what the transform reads
                saved_model.pb ...    optional: the same model for TensorFlow

Every file is named in bundle.json with its size and SHA-256. A SavedModel is the one guest: its files
are listed too when they were there at saving.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Tuple

from longboat.runtime.errors import LongboatError

SCHEMA = 1
MANIFEST = "bundle.json"
FUNCTION = "function.onnx"
WEIGHTS = "weights.safetensors"
TRANSFORM = "transform.py"
FILES = "files"

KINDS = ("text", "image", "table", "json")
"""How a person would use the model: which page a server shows for it."""

DTYPES = (
    "float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
    "string",
)  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """One input or output as a client sees it. None in a shape is a free length; the first is the batch."""

    name: str
    dtype: str
    shape: Tuple[Optional[int], ...]
    help: str = ""


@dataclass(frozen=True)
class Example:
    """One row to try the model with."""

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
    """File name of the transform; empty: there is none."""
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
    found = [int(n) for n in names if n.isdecimal() and os.path.isfile(os.path.join(directory, n, MANIFEST))]
    return tuple(sorted(found))


def read(path: str, verify: bool = True) -> Bundle:
    """The version in this directory. LongboatError names the file that is missing or not as it was saved."""
    path = os.path.abspath(path)
    manifest = os.path.join(path, MANIFEST)
    try:
        with open(manifest, encoding="utf-8") as file:
            told = json.load(file)
    except OSError as error:
        raise LongboatError(
            f"{manifest}: {error.strerror}", "a model version is a directory with a bundle.json in it"
        ) from None
    except ValueError as error:
        raise _damaged(manifest, f"not JSON: {error}") from None
    try:
        bundle = _of(told, path)
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


def tensors(told: Any, where: str) -> Tuple[Tensor, ...]:
    """Inputs or outputs as a script may say them: {name: (dtype, shape)}, or Tensors."""
    if isinstance(told, Mapping):
        told = [Tensor(name, str(dtype), tuple(shape)) for name, (dtype, shape) in told.items()]
    found: List[Tensor] = []
    for tensor in told:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{where}: {tensor!r} is no longboat.bundle.Tensor")
        if tensor.dtype not in DTYPES:
            raise ValueError(f"{where}: {tensor.name} has the dtype {tensor.dtype!r}; known: {', '.join(DTYPES)}")
        if not tensor.shape or tensor.shape[0] is not None:
            raise ValueError(f"{where}: the first length of {tensor.name} is the batch and must be None")
        found.append(tensor)
    return tuple(found)


def _of(told: Mapping[str, Any], path: str) -> Bundle:
    if told["longboat_bundle"] != SCHEMA:
        raise ValueError(f"a bundle of form {told['longboat_bundle']}; this Longboat reads form {SCHEMA}")
    files = {str(name): (int(f["size"]), str(f["sha256"])) for name, f in told["files"].items()}
    for name in files:
        if os.path.isabs(name) or ".." in name.split("/"):
            raise ValueError(f"{name!r} lies outside of the bundle")
    for needed in (FUNCTION, told.get("transform")):
        if needed and needed not in files:
            raise ValueError(f"{needed} is not among its files")
    return Bundle(
        name=str(told["name"]),
        version=int(told["version"]),
        path=path,
        kind=str(told["kind"]),
        title=str(told.get("title", "")),
        inputs=tuple(_tensor(t) for t in told["inputs"]),
        outputs=tuple(_tensor(t) for t in told["outputs"]),
        labels=tuple(str(label) for label in told.get("labels", ())),
        transform=str(told.get("transform") or ""),
        metrics={str(k): float(v) for k, v in told.get("metrics", {}).items()},
        examples=tuple(Example(e["inputs"], e.get("label"), e.get("note", "")) for e in told.get("examples", ())),
        provenance={str(k): str(v) for k, v in told.get("provenance", {}).items()},
        files=files,
    )


def _tensor(told: Mapping[str, Any]) -> Tensor:
    shape = tuple(None if length is None else int(length) for length in told["shape"])
    if told["dtype"] not in DTYPES:
        raise ValueError(f"{told['name']} has the unknown dtype {told['dtype']!r}")
    return Tensor(str(told["name"]), str(told["dtype"]), shape, str(told.get("help", "")))


def _tensor_json(tensor: Tensor) -> Dict[str, Any]:
    told: Dict[str, Any] = {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape)}
    return {**told, "help": tensor.help} if tensor.help else told


def _verify(path: str, size: int, digest: str) -> None:
    try:
        found = os.path.getsize(path)
    except OSError as error:
        raise _damaged(path, error.strerror or "cannot be read") from None
    if found != size:
        raise _damaged(path, f"it has {found} bytes and was saved with {size}")
    if digest_of(path) != digest:
        raise _damaged(path, "its bytes are not those that were saved")


def _damaged(path: str, why: str) -> LongboatError:
    return LongboatError(f"{path}: {why}", "the model is damaged: serve another version, or save it again")
