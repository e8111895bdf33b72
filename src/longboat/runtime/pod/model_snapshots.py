"""The model as servers get it: one version, put aside when its turn comes, under a number of its own.

What a stage trained may change under a server's feet: a later attempt writes beside it before any gate has seen it. So
whoever serves is given a copy (of links where the disk can, so it costs nothing), and a pod that is made a week later
fetches the same bytes. The newest copies are kept, because the pods of a roll want both.
"""

from __future__ import annotations

import filecmp
import os
import shutil
from dataclasses import dataclass
from typing import List, Tuple

from longboat.runtime import bundle, run_layout
from longboat.runtime.errors import LongboatError

KEPT = 3
SAVED = "saved_model.pb"


@dataclass(frozen=True)
class ModelSnapshot:
    number: int
    """Which model of this stage it is, from 1."""
    version: int
    """As the model's directory has it, and clients see it."""
    place: str
    """Of the directory that holds the version, within the run directory."""


def lay_in(run_dir: str, stage: str, output: str, saved: bool) -> ModelSnapshot:
    """The newest version of the one model that a stage left. saved: its SavedModel is what will be served."""
    version, source = newest(output, saved)
    home = run_layout.models(run_dir, stage)
    numbers = sorted(int(name) for name in _names(home) if name.isdecimal())
    last = numbers[-1] if numbers else 0
    if not last or not _same(source, os.path.join(home, str(last), str(version))):
        last += 1
        place = os.path.join(home, str(last))
        shutil.rmtree(place + ".part", ignore_errors=True)
        shutil.copytree(source, os.path.join(place + ".part", str(version)), copy_function=_link)
        os.replace(place + ".part", place)
    for number in numbers[: 1 - KEPT]:
        shutil.rmtree(os.path.join(home, str(number)), ignore_errors=True)
    return ModelSnapshot(last, version, os.path.relpath(os.path.join(home, str(last)), run_dir))


def newest(output: str, saved: bool) -> Tuple[int, str]:
    """Number and path of the newest version below a stage's output."""
    if os.path.isfile(os.path.join(output, SAVED)):
        return 1, output
    mark = SAVED if saved else bundle.MANIFEST
    models = {place: _versions(place, mark) for place in (output, *_below(output))}
    if not saved and not any(models.values()):  # a SavedModel beside no bundle: TensorFlow serves it
        models = {place: _versions(place, SAVED) for place in models}
    found = {place: numbers for place, numbers in models.items() if numbers}
    if len(found) > 1:
        names = ", ".join(sorted(os.path.basename(place) for place in found))
        said = f"the stage left several models ({names}), and one is served"
        raise LongboatError(said, "let each have a stage of its own")
    if not found:
        what = f"SavedModel ({SAVED})" if saved else "model"
        raise LongboatError(
            f"the stage left no {what} below its output directory",
            "save one with `longboat.bundle.save(...)` below $LONGBOAT_OUTPUT_DIR"
            + (", with `saved_model=`" if saved else ""),
        )
    ((place, numbers),) = found.items()
    return numbers[-1], os.path.join(place, str(numbers[-1]))


def _versions(place: str, mark: str) -> List[int]:
    return sorted(int(n) for n in _names(place) if n.isdecimal() and os.path.isfile(os.path.join(place, n, mark)))


def _below(place: str) -> List[str]:
    return [path for name in _names(place) if name[0] != "." and os.path.isdir(path := os.path.join(place, name))]


def _names(place: str) -> List[str]:
    try:
        return sorted(os.listdir(place))
    except OSError:
        return []


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
        return target
    except OSError:
        return str(shutil.copy2(source, target))


def _same(one: str, other: str) -> bool:
    """The same files with the same bytes."""
    here, there = _files(one), _files(other)
    return here == there and not filecmp.cmpfiles(one, other, here, shallow=False)[1]


def _files(place: str) -> List[str]:
    return sorted(os.path.relpath(os.path.join(top, name), place) for top, _, names in os.walk(place) for name in names)
