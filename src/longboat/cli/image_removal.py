"""`longboat rm --images`: deletes images that were pushed from this machine from their registries."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from longboat.cli.console import Console
from longboat.cli.removal_report import RemovalReport
from longboat.images import building, push_record
from longboat.runtime.errors import OK, LongboatError

if TYPE_CHECKING:
    from longboat.runtime.plan import Plan


def all_of(console: Console, report: RemovalReport) -> int:
    """Removes all images pushed from this machine, and the build cache."""
    made = push_record.pushed(console.home)
    if not made:
        console.say("no images were pushed from this machine")
    _remove(made, console, report)
    for kept in ("blobs", "layers"):
        shutil.rmtree(os.path.join(push_record.place(console.home), kept), ignore_errors=True)
    return OK


def of_run(console: Console, report: RemovalReport, image: str, others: Mapping[str, Plan]) -> None:
    """Removes the image of a removed run, unless another run uses it."""
    used = {plan.image: run for run, plan in others.items()}
    if image in used:
        console.say(f"kept {image}: {used[image]} uses it")
        return
    _remove([made for made in push_record.pushed(console.home) if made.exact == image], console, report)


def _remove(images: Iterable[push_record.PushedImage], console: Console, report: RemovalReport) -> None:
    refused: list[LongboatError] = []
    for made in images:
        try:
            if building.remove(made, console.home, console.environ):
                report.gone(made.reference)
            else:
                console.say(f"{made.reference} was already gone")
        except LongboatError as error:
            refused.append(LongboatError(f"{made.exact}: {error.message}", error.hint, error.code))
    if refused:
        raise LongboatError("; ".join(error.message for error in refused), refused[0].hint, refused[0].code)
