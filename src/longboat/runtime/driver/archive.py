"""Moves the results of a stage that will run again out of the way, without losing them."""

from __future__ import annotations

import os
from typing import Sequence

from longboat.runtime import run_layout
from longboat.runtime.driver.history import RunHistory


def archive_results(run_dir: str, before: RunHistory, stages: Sequence[str]) -> None:
    """Move output and checkpoints of these stages to the run's `superseded` directory; model versions count on."""
    if not stages:
        return
    from longboat.runtime.bundle import bundle_writer

    for name in stages:
        archive = run_layout.superseded(run_dir, name, before.attempts.get(name, 1))
        output = run_layout.output(run_dir, name)
        models = bundle_writer.numbered(output) if os.path.isdir(output) else {}
        for kind, path in (("output", output), ("checkpoints", run_layout.checkpoints_of(run_dir, name))):
            if os.path.isdir(path) and not os.path.isdir(os.path.join(archive, kind)):
                os.makedirs(archive, exist_ok=True)
                os.rename(path, os.path.join(archive, kind))
        for model, last in models.items():
            bundle_writer.continue_numbering(os.path.join(output, model), last)
