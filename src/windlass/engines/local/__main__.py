"""`python -m windlass.engines.local DIRECTORY`: drives the run that was opened there."""

from __future__ import annotations

import os
import sys

from windlass import journal, layout
from windlass import plan as plans
from windlass.engines.local.start import Started

if __name__ == "__main__":
    directory = sys.argv[1]
    with open(os.path.join(directory, layout.PLAN), encoding="utf-8") as file:
        plan = plans.from_json(file.read())
    home = os.path.dirname(os.path.dirname(directory))
    events = len(journal.read(directory))
    run = Started(plan, directory, home, os.environ, events)
    sys.exit(run.drive(begun=run.remember))
