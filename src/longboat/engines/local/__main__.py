"""`python -m longboat.engines.local DIRECTORY EVENTS [ORDERS]`: drives the run that was opened there.

EVENTS is how many its journal held when that was decided; ORDERS, of a run that goes on, what its driver is told.
"""

from __future__ import annotations

import os
import sys

from longboat.engines.local import driver_orders
from longboat.engines.local.opening import OpenedRun
from longboat.runtime import plan as plans
from longboat.runtime import run_layout

if __name__ == "__main__":
    directory, events, *told = sys.argv[1:]
    with open(os.path.join(directory, run_layout.PLAN), encoding="utf-8") as file:
        plan = plans.from_json(file.read())
    home = os.path.dirname(os.path.dirname(directory))
    order = driver_orders.from_json(told[0]) if told else None
    run = OpenedRun(plan, directory, home, os.environ, int(events), orders=order)
    sys.exit(run.drive(begun=run.remember))
