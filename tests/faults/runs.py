"""Faults of a run as a whole: who drives it, who stops it, its gate, its disk."""

from __future__ import annotations

import signal

from longboat.runtime.causes import CauseKind
from tests.faults import injections as do
from tests.faults.fault import Fault

ONE = "run: [python, work.py]\nrestarts: 0\n"
UP = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
GATE = "  good: {gate: {of: main, metric: accuracy, at_least: 0.9}}\n"

RUNS = (
    Fault(
        "a driver that is killed",
        CauseKind.DRIVER_LOST,
        ONE,
        where="",
        state="lost",
        says=("is lost: the driver stopped unexpectedly", "no process holds the run's lock"),
        because=("worker-0",),
        work=UP,
        inject=do.driver_killed,
    ),
    Fault(
        "a supervisor that is killed",
        CauseKind.DRIVER_LOST,
        ONE,
        where="",
        says=("failed: the supervisor of the run's processes was killed", "the driver itself was alive"),
        work=UP,
        inject=do.supervisor_killed,
    ),
    Fault(
        "Ctrl-C",
        CauseKind.STOPPED,
        ONE,
        where="",
        state="stopped",
        says=("was stopped", "Ctrl-C"),
        work=UP,
        inject=do.driver_signalled(signal.SIGINT),
    ),
    Fault(
        "`longboat stop`",
        CauseKind.STOPPED,
        ONE,
        where="",
        state="stopped",
        says=("was stopped", "longboat stop"),
        work=UP,
        inject=do.stopped,
    ),
    Fault(
        "the terminal closed",
        CauseKind.STOPPED,
        ONE,
        where="",
        state="stopped",
        says=("was stopped", "closing the terminal"),
        work=UP,
        inject=do.driver_signalled(signal.SIGHUP),
    ),
    Fault(
        "a gate that is not met",
        CauseKind.GATE_NOT_MET,
        "stages:\n  main: {run: [python, work.py]}\n" + GATE,
        where="good",
        state="gate_missed",
        says=("missed its gate", "accuracy is 0.5", "must be at least 0.9"),
        work="import longboat\nlongboat.report(step=1, accuracy=0.5)\n",
    ),
    Fault(
        "a metric that was never reported",
        CauseKind.GATE_NOT_MET,
        "stages:\n  main: {run: [python, work.py]}\n" + GATE,
        where="good",
        state="gate_missed",
        says=("stage main never reported accuracy", "main reported loss"),
        work="import longboat\nlongboat.report(step=1, loss=0.5)\n",
    ),
    Fault(
        "a metric that is not a number",
        CauseKind.GATE_NOT_MET,
        "stages:\n  main: {run: [python, work.py]}\n" + GATE,
        where="good",
        state="gate_missed",
        says=("accuracy is nan",),
        work="import longboat\nlongboat.report(step=1, accuracy=float('nan'))\n",
    ),
    Fault(
        "the run's disk full",
        CauseKind.DISK_FULL,
        "run: [python, work.py]\nretries: 3\n",
        says=("the disk is full", "free in the run's directory"),
        work="""\
            import os
            with open(os.environ["LONGBOAT_OUTPUT_DIR"] + "/big", "wb") as file:
                while True:
                    file.write(b"x" * 65536)
            """,
        inject=do.on_a_small_disk,
        next="longboat prune --older-than 7d",
    ),
    Fault(
        "another disk full",
        CauseKind.DISK_FULL,
        ONE,
        says=("OSError: [Errno 28] No space left on device", "free in the run's directory", "work.py:2"),
        work="file = open('/dev/full', 'wb', buffering=0)\nfile.write(b'x')\n",
    ),
    Fault(
        "a file where the output directory has to be",
        CauseKind.NOT_WRITABLE,
        "stages:\n  one: {run: 'touch $LONGBOAT_OUTPUT_DIR/../two'}\n  two: {run: 'true', after: one, retries: 2}\n",
        where="two/worker-0",
        says=("cannot write", "output/two", "File exists", "as uid"),
    ),
)
