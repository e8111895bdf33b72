"""`make chaos KILLS=200 [SEED=n]`: real runs, real kills, and a table of what became of them.

The seed chooses victims and moments; it is printed, and the same seed hunts the same victims.
Exits with 1 on any miss. Runs that went wrong are kept, and named.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.killing import Hunt, Job, draw
from tests.local.place import Place

A_RUN = 14
"""Most blows that one run takes."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    args = parser.parse_args()
    chance = random.Random(args.seed)
    began = time.monotonic()
    print(f"{args.kills} kills, seed {args.seed}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="lb-chaos-"))
    hunt = Hunt(Place(directory), args.seed, lambda text: print(text, flush=True))
    victims = draw(args.kills, chance)
    while victims and not hunt.tally.problems:
        struck = hunt.run(Job(ranks=chance.choice((2, 3, 4))), victims[:A_RUN])
        del victims[:struck]
    left = list(hunt.place.close())
    tally = hunt.tally
    good = tally.good and not left
    resumed = sum(kill.resumed for kill in tally.kills)
    print(f"\n{tally.table()}\n")
    print(f"{len(tally.kills)} kills in {tally.runs} runs, {resumed} resumed, {time.monotonic() - began:.0f} s")
    if good:
        print("final weights: bit-identical to the undisturbed run's in every run")
        print(f"logs: {tally.lines} lines, none lost, none doubled; orphans: 0; scratch files: 0")
        shutil.rmtree(directory)
    else:
        print("\n".join(["WRONG:", *tally.problems, *left, f"seed {args.seed}; the runs are kept in {directory}"]))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
