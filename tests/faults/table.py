"""The faults that are injected, and what `longboat why` must say of each. docs/failures.md lists them."""

from __future__ import annotations

from tests.faults.gangs import HANGS, MPIS, PEERS, SIGNALS
from tests.faults.programs import COMMANDS, EXITS, RAISED
from tests.faults.runs import RUNS

FAULTS = (*RAISED, *EXITS, *COMMANDS, *SIGNALS, *HANGS, *PEERS, *RUNS, *MPIS)
