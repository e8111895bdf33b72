"""Writes a version of a model: everything under a temporary name, then one rename.

A script that is killed meanwhile leaves no incomplete version; the next save removes what is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from typing import Any, Iterator, Mapping, Optional, Sequence, Tuple, Union

from longboat import __version__
from longboat.runtime import atomic_file, run_layout
from longboat.runtime.bundle import onnx_model
from longboat.runtime.bundle.bundle_format import (
    FILES,
    KINDS,
    MANIFEST,
    TRANSFORM,
    Bundle,
    Example,
    Tensor,
    as_json,
    digest_of,
    tensors,
)
from longboat.runtime.light_dataclasses import replace

Signature = Union[Mapping[str, Tuple[str, Sequence[Optional[int]]]], Sequence[Tensor]]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
UNFINISHED = ".unfinished-"
LAST = ".last-version"
"""File in a model's directory: the highest version so far, if the versions themselves were archived."""


def save(
    directory: Union[str, os.PathLike[str]],
    function: Any,
    inputs: Optional[Signature] = None,
    outputs: Optional[Signature] = None,
    *,
    kind: str = "json",
    title: str = "",
    labels: Sequence[Any] = (),
    transform: Optional[str] = None,
    function_inputs: Optional[Signature] = None,
    function_outputs: Sequence[str] = (),
    files: Optional[Mapping[str, str]] = None,
    saved_model: Optional[str] = None,
    metrics: Optional[Mapping[str, Any]] = None,
    examples: Sequence[Example] = (),
    version: Optional[int] = None,
) -> Bundle:
    """Save a new version of the model in `directory`, whose last part is the model's name.

    function: an ONNX model (object, bytes, path), or a JAX function of the inputs in their order.
    inputs, outputs: what clients see, {name: (dtype, shape)} with None for any length, the batch first. Optional for an
        ONNX function without a transform, which declares them itself.
    kind: text, image, table or json: the page that a server shows.
    transform: path of a Python file with a class Transform (before, after, explain); the server runs it.
    function_inputs, function_outputs: of the function, if a transform runs before or after it.
    files: files for the transform: name in the bundle -> path.
    saved_model: directory of a TensorFlow SavedModel of the same model, stored with it for TensorFlow Serving.
    examples: example rows; version: its number, by default one above the highest.
    """
    directory = os.path.abspath(os.fspath(directory))
    name = os.path.basename(directory)
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a valid model name: use letters, digits, dot, dash and underscore")
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}: use one of {', '.join(KINDS)}")
    if transform and (inputs is None or outputs is None):
        raise ValueError("with a transform, pass the inputs and outputs that clients see")
    seen_inputs = tensors(inputs, "inputs") if inputs is not None else ()
    seen_outputs = tensors(outputs, "outputs") if outputs is not None else ()
    own_inputs = tensors(function_inputs, "function_inputs") if function_inputs is not None else seen_inputs
    own_outputs = function_outputs or ([] if transform else [t.name for t in seen_outputs])
    model = onnx_model.as_model(function, own_inputs, own_outputs)
    if not transform:
        constants = {item.name for item in model.graph.initializer}
        graph_inputs = onnx_model.signature(v for v in model.graph.input if v.name not in constants)
        seen_inputs = _agree(seen_inputs, graph_inputs, "inputs")
        seen_outputs = _agree(seen_outputs, onnx_model.signature(model.graph.output), "outputs")
    bundle = Bundle(
        name,
        _next_version(directory) if version is None else version,
        directory,
        kind,
        title or name,
        seen_inputs,
        seen_outputs,
        tuple(str(label) for label in labels),
        TRANSFORM if transform else "",
        {key: float(value) for key, value in (metrics or {}).items()},
        tuple(examples),
        _provenance(),
    )
    with _finished_at_once(directory, bundle.version) as unfinished:
        onnx_model.write(model, unfinished)
        if transform:
            shutil.copyfile(transform, os.path.join(unfinished, TRANSFORM))
        for inside, path in (files or {}).items():
            target = os.path.join(unfinished, FILES, inside)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copyfile(path, target)
        if saved_model:
            shutil.copytree(saved_model, unfinished, dirs_exist_ok=True)
        bundle = replace(
            bundle,
            path=os.path.join(directory, str(bundle.version)),
            files={each: (os.path.getsize(full), digest_of(full)) for each, full in _walk(unfinished)},
        )
        with open(os.path.join(unfinished, MANIFEST), "w", encoding="utf-8") as file:
            json.dump(as_json(bundle), file, indent=2, ensure_ascii=False, allow_nan=False)
            file.write("\n")
    return bundle


@contextlib.contextmanager
def _finished_at_once(directory: str, version: int) -> Iterator[str]:
    """A directory to fill; it becomes the version if the block succeeds, and is removed if it does not."""
    target = os.path.join(directory, str(version))
    if os.path.exists(target):
        raise ValueError(f"{target} exists already; a version is never changed")
    os.makedirs(directory, exist_ok=True)
    for name in os.listdir(directory):
        if name.startswith(UNFINISHED + str(version) + "-"):
            shutil.rmtree(os.path.join(directory, name), ignore_errors=True)
    unfinished = os.path.join(directory, f"{UNFINISHED}{version}-{os.getpid()}")
    os.mkdir(unfinished)
    try:
        yield unfinished
        for _, path in _walk(unfinished):
            atomic_file.flush(path)
        os.rename(unfinished, target)
        atomic_file.flush(directory)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _next_version(directory: str) -> int:
    try:
        names = os.listdir(directory)
    except OSError:
        names = []
    return 1 + max([int(name) for name in names if name.isdecimal()] + [_last(directory)])


def _last(directory: str) -> int:
    try:
        with open(os.path.join(directory, LAST), encoding="utf-8") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def numbered(output: str) -> Mapping[str, int]:
    """Model -> highest version, for the models in a stage's output."""
    last_versions = {}
    for name in sorted(os.listdir(output)):
        last = _next_version(os.path.join(output, name)) - 1 if not name.isdecimal() else 0
        if last > 0:
            last_versions[name] = last
    return last_versions


def continue_numbering(directory: str, last: int) -> None:
    """Continue numbering after the versions of a model were archived: clients and servers identify versions by their
    number."""
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, LAST), "w", encoding="utf-8") as file:
        file.write(f"{last}\n")


def _agree(given: Tuple[Tensor, ...], actual: Tuple[Tensor, ...], what: str) -> Tuple[Tensor, ...]:
    """The given signature if the function has it; the function's own if none is given."""
    if not given:
        return tensors(actual, what)
    by_name = {tensor.name: tensor for tensor in actual}
    for tensor in given:
        own = by_name.get(tensor.name)
        if own is None:
            raise ValueError(f"{what}: the function has no {tensor.name!r}; it has {', '.join(by_name)}")
        if own.dtype != tensor.dtype or len(own.shape) not in (0, len(tensor.shape)):
            raise ValueError(f"{what}: {tensor.name} is {own.dtype} {list(own.shape)} in the function")
    missing = [name for name in by_name if name not in {tensor.name for tensor in given}]
    if missing and what == "inputs":
        raise ValueError(f"inputs: the function also needs {', '.join(missing)}")
    return given


def _provenance() -> Mapping[str, str]:
    provenance = {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "longboat": __version__,
        "run": os.environ.get("LONGBOAT_RUN_ID", ""),
        "stage": os.environ.get("LONGBOAT_STAGE", ""),
        "code": _code(),
    }
    return {key: value for key, value in provenance.items() if value}


def _code() -> str:
    """The hash of the run's code tree, from the run's provenance; empty outside of a run."""
    output = os.environ.get("LONGBOAT_OUTPUT_DIR", "")
    try:
        with open(os.path.join(run_layout.run_of_output(output), run_layout.PROVENANCE), encoding="utf-8") as file:
            return str(json.load(file)["code"]["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _walk(directory: str) -> Iterator[Tuple[str, str]]:
    """Relative name (with /) and path of every file."""
    for root, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(root, name)
            yield os.path.relpath(path, directory).replace(os.sep, "/"), path
