"""Finds the models to serve: from a model, one version, a directory of models, or a run."""

from __future__ import annotations

import os
from pathlib import Path

from longboat.runs.store import Store
from longboat.runtime import bundle as bundles
from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import dataclass

MANIFEST = "bundle.json"
FOREIGN = (".h5", ".hdf5", ".keras")
"""Suffixes of Keras files."""


@dataclass(frozen=True)
class ModelSource:
    """A model on disk and its name for clients."""

    name: str
    directory: str
    only: int = 0
    """Serve only this version; 0: by policy."""
    foreign: bool = False
    """Not a bundle but a Keras file or TensorFlow SavedModel, with version 1 (or `only`)."""

    def versions(self) -> dict[int, tuple[str, object]]:
        """Complete versions: path, and a mark that changes when the version is rewritten."""
        if self.foreign:
            return {self.only or 1: (self.directory, _mark(self.directory))}
        versions = {}
        for number in bundles.versions(self.directory):
            path = os.path.join(self.directory, str(number))
            mark = _mark(os.path.join(path, MANIFEST))
            if mark and self.only in (0, number):
                versions[number] = (path, mark)
        return versions


def _mark(path: str) -> object:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def find(arguments: list[str], name: str, store: Store) -> list[ModelSource]:
    """The models for arguments of the command line: PATH, NAME=PATH, RUN or NAME=RUN."""
    models: list[ModelSource] = []
    for argument in arguments:
        given, equals, location = argument.partition("=")
        if not equals or os.path.exists(argument):
            given, location = "", argument
        sources = _of_path(location) or _of_run(location, store)
        wanted = given or (name if len(arguments) == 1 else "")
        if wanted:
            if len(sources) > 1:
                names = ", ".join(source.name for source in sources)
                raise LongboatError(
                    f"{location} has several models, which cannot all be named {wanted!r}", f"its models: {names}"
                )
            _check_name(wanted)
            sources = [ModelSource(wanted, s.directory, s.only, s.foreign) for s in sources]
        models += sources
    seen: dict[str, ModelSource] = {}
    for source in models:
        if source.name in seen:
            raise LongboatError(
                f"two models are called {source.name!r}: {seen[source.name].directory} and {source.directory}",
                f"give one of them another name: `longboat serve other={source.directory} ...`",
            )
        seen[source.name] = source
    return models


def _check_name(name: str) -> None:
    if not name or not all(c.isalnum() and c.isascii() or c in "._-" for c in name):
        raise LongboatError(
            f"{name!r} is no name for a model", "letters, digits, dot, dash and underscore may be in one"
        )


def _of_path(location: str) -> list[ModelSource]:
    """Models at a path; [] if the argument may be a run."""
    path = os.path.abspath(os.path.expanduser(location))
    if os.path.isfile(path):
        if path.endswith(FOREIGN):
            return [ModelSource(_plain(Path(path).stem), path, foreign=True)]
        if os.path.basename(path) == MANIFEST:
            path = os.path.dirname(path)
        else:
            raise LongboatError(
                f"{location} is not a model", "use a directory with numbered versions, a .keras or .h5 file, or a run"
            )
    if not os.path.isdir(path):
        return []
    if os.path.isfile(os.path.join(path, MANIFEST)):
        bundle = bundles.read(path, verify=False)
        return [ModelSource(bundle.name, os.path.dirname(path), _number(path, bundle.version))]
    if bundles.versions(path):
        return [ModelSource(_plain(os.path.basename(path)), path)]
    if saved := _saved_model(path):
        return [saved]
    below = [ModelSource(_plain(name), os.path.join(path, name)) for name in sorted(os.listdir(path)) if name[0] != "."]
    below = [source for source in below if bundles.versions(source.directory)]
    if not below and os.sep in location:
        raise LongboatError(
            f"no model in {location}",
            "a model is a directory of numbered versions, each with a bundle.json; list models with `longboat models`",
        )
    return below


def _number(path: str, version: int) -> int:
    name = os.path.basename(path)
    if name.isdecimal():
        return int(name)
    raise LongboatError(
        f"{path} is version {version} of a model, but its directory is not named {version}",
        f"rename the directory, as in MODEL/{version}/bundle.json",
    )


def _saved_model(path: str) -> ModelSource | None:
    """A SavedModel, or the newest version in TensorFlow Serving's layout."""
    if os.path.isfile(os.path.join(path, "saved_model.pb")):
        return ModelSource(_plain(os.path.basename(path)), path, foreign=True)
    numbers = [int(n) for n in os.listdir(path) if n.isdecimal()]
    numbers = [n for n in numbers if os.path.isfile(os.path.join(path, str(n), "saved_model.pb"))]
    if not numbers:
        return None
    newest = max(numbers)
    return ModelSource(_plain(os.path.basename(path)), os.path.join(path, str(newest)), newest, foreign=True)


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() or c in "._-" else "-" for c in name) or "model"


def _of_run(location: str, store: Store) -> list[ModelSource]:
    try:
        run = store.find(location)
    except LongboatError as error:
        raise LongboatError(
            f"{location} is neither a model directory nor a run",
            f"{error.hint or error.message}; list models with `longboat models`",
        ) from None
    sources = in_run(run)
    if not sources:
        raise LongboatError(
            f"run {run.name} has no model",
            "a stage saves one with `longboat.bundle.save(...)` below $LONGBOAT_OUTPUT_DIR; "
            f"list its files with `longboat ls {run.name}`",
        )
    return sources


def in_run(run: Path) -> list[ModelSource]:
    """Models in a run's outputs."""
    return below(run / "output")


def below(root: Path) -> list[ModelSource]:
    """Every model below a directory. Of two with one name, the one written last."""
    newest: dict[str, tuple[float, ModelSource]] = {}
    for directory, names, files in os.walk(root):
        names[:] = sorted(name for name in names if not name.startswith("."))
        if MANIFEST in files:
            names[:] = []
            model = os.path.dirname(directory)
            if not os.path.basename(directory).isdecimal():
                continue
            written = os.stat(os.path.join(directory, MANIFEST)).st_mtime
            name = _plain(os.path.basename(model))
            if name not in newest or written > newest[name][0]:
                newest[name] = (written, ModelSource(name, model))
    return [source for _, source in newest.values()]
