"""`python -m longboat.engines.local DIRECTORY EVENTS [ORDERS]`: drives the run that was opened there.

EVENTS is how many its journal held when that was decided; ORDERS, of a run that goes on, what its driver is told.
"""

from __future__ import annotations

import os
import sys

from longboat import layout
from longboat import plan as plans
from longboat.engines.local import orders
from longboat.engines.local.start import Started

if __name__ == "__main__":
    directory, events, *told = sys.argv[1:]
    with open(os.path.join(directory, layout.PLAN), encoding="utf-8") as file:
        plan = plans.from_json(file.read())
    home = os.path.dirname(os.path.dirname(directory))
    order = orders.from_json(told[0]) if told else None
    run = Started(plan, directory, home, os.environ, int(events), orders=order)
    sys.exit(run.drive(begun=run.remember))
