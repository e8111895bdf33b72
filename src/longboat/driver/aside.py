"""Puts aside what a stage left that is to run anew: out of the way of the new results, and not lost.

Ships into strangers' images: standard library only, Python 3.9.
"""

from __future__ import annotations

import os
from typing import Sequence

from longboat import layout
from longboat.driver.history import Before


def put_aside(run_dir: str, before: Before, stages: Sequence[str]) -> None:
    if not stages:
        return
    from longboat.bundle import writing

    for name in stages:
        place = layout.superseded(run_dir, name, before.attempts.get(name, 1))
        output = layout.output(run_dir, name)
        models = writing.numbered(output) if os.path.isdir(output) else {}
        for kind, path in (("output", output), ("checkpoints", layout.checkpoints_of(run_dir, name))):
            if os.path.isdir(path) and not os.path.isdir(os.path.join(place, kind)):
                os.makedirs(place, exist_ok=True)
                os.rename(path, os.path.join(place, kind))
        for model, last in models.items():
            writing.go_on_behind(os.path.join(output, model), last)
