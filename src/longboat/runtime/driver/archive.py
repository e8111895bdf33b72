"""Puts aside what a stage left that is to run anew: out of the way of the new results, and not lost."""

from __future__ import annotations

import os
from typing import Sequence

from longboat.runtime import run_layout
from longboat.runtime.driver.history import RunHistory


def put_aside(run_dir: str, before: RunHistory, stages: Sequence[str]) -> None:
    if not stages:
        return
    from longboat.runtime.bundle import bundle_writer

    for name in stages:
        place = run_layout.superseded(run_dir, name, before.attempts.get(name, 1))
        output = run_layout.output(run_dir, name)
        models = bundle_writer.numbered(output) if os.path.isdir(output) else {}
        for kind, path in (("output", output), ("checkpoints", run_layout.checkpoints_of(run_dir, name))):
            if os.path.isdir(path) and not os.path.isdir(os.path.join(place, kind)):
                os.makedirs(place, exist_ok=True)
                os.rename(path, os.path.join(place, kind))
        for model, last in models.items():
            bundle_writer.go_on_behind(os.path.join(output, model), last)
