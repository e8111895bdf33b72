"""A trainer that nobody waits for: it counts, saves what it has counted, and goes on from there in its next life.

The first life of rank 1 stops half-way and waits for its end: so it is not over before the harm is done.
"""

import array
import os
import sys
import time

import longboat

output, rank = os.environ["LONGBOAT_OUTPUT_DIR"], os.environ["LONGBOAT_RANK"]
if sys.argv[1:] == ["merge"]:
    total = 0
    for name in sorted(os.listdir(output)):
        with open(os.path.join(output, name)) as file:
            total += int(file.read())
    print("merged", total, flush=True)
    sys.exit()
state = longboat.checkpoint.load()
first = state.step + 1 if state else 0
for step in range(first, 60):
    print(f"life {os.environ['LONGBOAT_RESTART']} step {step}", flush=True)
    longboat.report(step=step + 1, total=60, lines=step)
    longboat.checkpoint.save({"count": array.array("d", [step])}, step=step, wait=True)
    doomed = rank == "1" and os.environ["LONGBOAT_RESTART"] == "0" and step + 1 >= 30
    time.sleep(3600 if doomed else 0.15)
with open(os.path.join(output, f"part-{rank}"), "w") as file:
    file.write(str(step + 1))
