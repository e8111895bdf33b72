"""`python -m longboat.engines.local DIRECTORY EVENTS [ORDERS]`: drives a prepared run.

EVENTS is the number of events in its journal when the run was prepared; ORDERS are the driver orders of a resumed run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from longboat.engines.interface import EngineContext
from longboat.engines.local import driver_orders
from longboat.engines.local.engine import LocalRun, PendingStart
from longboat.runtime import plan as plans
from longboat.runtime import run_layout

if __name__ == "__main__":
    directory, events, *orders = sys.argv[1:]
    plan = plans.from_json(Path(directory, run_layout.PLAN).read_text(encoding="utf-8"))
    context = EngineContext(os.path.dirname(os.path.dirname(directory)), os.environ)
    pending = PendingStart(plan, int(events), driver_orders.from_json(orders[0]) if orders else None)
    sys.exit(LocalRun(Path(directory), context, pending).drive())
