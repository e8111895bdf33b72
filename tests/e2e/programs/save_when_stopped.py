"""Trains until it is asked to stop, saves a checkpoint then, and ends soon once it has resumed from one."""

import array
import time

import longboat

state = longboat.checkpoint.load()
first = 0 if state is None else state.step + 1
print("first step", first, flush=True)
for step in range(first, first + 3 if first else 100000):
    longboat.report(step=step)
    if longboat.stopping():
        longboat.checkpoint.save({"w": array.array("d", [step])}, step=step, wait=True)
        print("saved step", step, flush=True)
        raise SystemExit(1)
    time.sleep(0.05)
