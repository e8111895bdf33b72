"""Lists and copies the recipes that come with Longboat, for `longboat init`.

A recipe is a directory with `job.yaml`, scripts and a README; it is never imported. A wheel has the recipes inside the
package, a checkout beside it. Nothing here prints.
"""

from __future__ import annotations

import os
import re
import shutil

from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import dataclass

_NOT_COPIED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")

_EXTRAS = {"jax": "jax", "keras": "jax", "mpi4py": "mpi", "tensorflow": "tensorflow"}
"""Imported module -> the extra of Longboat that installs it."""


@dataclass(frozen=True)
class Recipe:
    name: str
    path: str
    about: str
    """The first sentence of its README."""
    shapes: tuple[str, ...]
    extras: tuple[str, ...]
    """The extras of Longboat that it needs to run."""


def directory() -> str:
    """Directory of the recipes of this installation."""
    package = os.path.dirname(os.path.abspath(__file__))
    candidates = [os.path.join(package, "_recipes"), os.path.join(package, "..", "..", "recipes")]
    for candidate in candidates:
        if os.path.isdir(candidate):
            return os.path.normpath(candidate)
    raise LongboatError(
        "this installation of Longboat has no recipes", "reinstall it from a wheel or a checkout (README, Install)"
    )


def every() -> list[Recipe]:
    """All recipes, sorted by name."""
    root = directory()
    return [recipe for name in sorted(os.listdir(root)) if (recipe := _read(root, name)) is not None]


def find(name: str) -> Recipe:
    recipes = {recipe.name: recipe for recipe in every()}
    if name in recipes:
        return recipes[name]
    import difflib

    near = difflib.get_close_matches(name, recipes, n=1, cutoff=0.5)
    hint = f"did you mean `longboat init {near[0]}`?" if near else "list the recipes with `longboat init`"
    raise LongboatError(f"unknown recipe {name!r}", hint)


def copy(recipe: Recipe, target: str) -> list[str]:
    """Copy the recipe into a new or empty directory. Returns the relative paths."""
    if os.path.lexists(target) and (not os.path.isdir(target) or os.listdir(target)):
        what = "is not empty" if os.path.isdir(target) else "is a file"
        raise LongboatError(
            f"{target} {what}; nothing was written", f"use another directory: longboat init {recipe.name} DIR"
        )
    try:
        shutil.copytree(recipe.path, target, ignore=_NOT_COPIED, dirs_exist_ok=True)
    except OSError as error:
        raise LongboatError(f"cannot write {target}: {error.strerror or error}") from error
    paths = [os.path.relpath(os.path.join(top, name), target) for top, _, names in os.walk(target) for name in names]
    return sorted(paths, key=lambda path: (path.count(os.sep), path))


def extras_of(source: str) -> set[str]:
    """The extras that a Python source needs."""
    return {_EXTRAS[name] for name in imported(source) if name in _EXTRAS}


def imported(source: str) -> set[str]:
    """Top-level modules that a Python source imports, by pattern, because the source may not parse."""
    return set(re.findall(r"^\s*(?:from|import)\s+(\w+)", source, re.MULTILINE))


def first_sentence(markdown: str) -> str:
    """The first sentence of the first paragraph below the title."""
    for paragraph in re.split(r"\n\s*\n", markdown):
        text = " ".join(paragraph.split())
        if text and not text.startswith(("#", "```", "|", "<")):
            return re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0]
    return ""


def _read(root: str, name: str) -> Recipe | None:
    path = os.path.join(root, name)
    try:
        with open(os.path.join(path, "job.yaml"), encoding="utf-8") as file:
            job = file.read()
    except OSError:
        return None
    shapes = re.findall(r"^\s+shape:\s*(\w+)", job, re.MULTILINE) or ["single"]
    extras: set[str] = set()
    for file_name in os.listdir(path):
        if file_name.endswith(".py"):
            extras |= extras_of(_text(os.path.join(path, file_name)))
    about = first_sentence(_text(os.path.join(path, "README.md")))
    return Recipe(name, path, about, tuple(dict.fromkeys(shapes)), tuple(sorted(extras)))


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
