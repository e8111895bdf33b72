"""Snapshots of the model to serve: one version, copied under a number of its own.

The output of a stage may change while it is served: a later attempt writes next to it before any gate has seen it. So
servers get a copy (hard links where the disk allows it, so it costs nothing), and a pod created a week later fetches
the same bytes. The newest copies are kept: during a rollout, pods need the old and the new one.
"""

from __future__ import annotations

import filecmp
import os
import shutil
from typing import List, Tuple

from longboat.runtime import bundle, run_layout
from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import dataclass

KEPT = 3
SAVED = "saved_model.pb"


@dataclass(frozen=True)
class ModelSnapshot:
    """A copy of one model version."""

    number: int
    """Number of this snapshot in its stage, from 1."""
    version: int
    """Version in the model's directory, as clients see it."""
    directory: str
    """Directory that holds the version, relative to the run directory."""


def snapshot_model(run_dir: str, stage: str, output: str, saved: bool) -> ModelSnapshot:
    """Copy the newest version of the one model that a stage wrote. saved: its SavedModel will be served."""
    version, source = newest(output, saved)
    home = run_layout.models(run_dir, stage)
    numbers = sorted(int(name) for name in _names(home) if name.isdecimal())
    last = numbers[-1] if numbers else 0
    if not last or not _same(source, os.path.join(home, str(last), str(version))):
        last += 1
        directory = os.path.join(home, str(last))
        shutil.rmtree(directory + ".part", ignore_errors=True)
        shutil.copytree(source, os.path.join(directory + ".part", str(version)), copy_function=_link)
        os.replace(directory + ".part", directory)
    for number in numbers[: 1 - KEPT]:
        shutil.rmtree(os.path.join(home, str(number)), ignore_errors=True)
    return ModelSnapshot(last, version, os.path.relpath(os.path.join(home, str(last)), run_dir))


def newest(output: str, saved: bool) -> Tuple[int, str]:
    """Number and path of the newest version below a stage's output."""
    if os.path.isfile(os.path.join(output, SAVED)):
        return 1, output
    mark = SAVED if saved else bundle.MANIFEST
    models = {directory: _versions(directory, mark) for directory in (output, *_below(output))}
    if not saved and not any(models.values()):  # a SavedModel without a bundle: TensorFlow serves it
        models = {directory: _versions(directory, SAVED) for directory in models}
    with_versions = {directory: numbers for directory, numbers in models.items() if numbers}
    if len(with_versions) > 1:
        names = ", ".join(sorted(os.path.basename(directory) for directory in with_versions))
        message = f"the stage wrote several models ({names}), but only one can be served"
        raise LongboatError(message, "use one stage for each model")
    if not with_versions:
        what = f"SavedModel ({SAVED})" if saved else "model"
        raise LongboatError(
            f"the stage wrote no {what} to its output directory",
            "save one with `longboat.bundle.save(...)` below $LONGBOAT_OUTPUT_DIR"
            + (", with `saved_model=`" if saved else ""),
        )
    ((directory, numbers),) = with_versions.items()
    return numbers[-1], os.path.join(directory, str(numbers[-1]))


def _versions(directory: str, mark: str) -> List[int]:
    return sorted(
        int(n) for n in _names(directory) if n.isdecimal() and os.path.isfile(os.path.join(directory, n, mark))
    )


def _below(directory: str) -> List[str]:
    return [
        path for name in _names(directory) if name[0] != "." and os.path.isdir(path := os.path.join(directory, name))
    ]


def _names(directory: str) -> List[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
        return target
    except OSError:
        return str(shutil.copy2(source, target))


def _same(first: str, second: str) -> bool:
    """Whether two directories hold the same files with the same bytes."""
    files, others = _files(first), _files(second)
    return files == others and not filecmp.cmpfiles(first, second, files, shallow=False)[1]


def _files(directory: str) -> List[str]:
    return sorted(
        os.path.relpath(os.path.join(top, name), directory) for top, _, names in os.walk(directory) for name in names
    )
