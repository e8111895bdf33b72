"""Plays many seeds, or one of them aloud.

python -m tests.sim                     a million faults, on two processes
python -m tests.sim --seed 123          one seed, with all that happens in it
python -m tests.sim --mutant NAME       the same with a planted bug
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter

from tests.sim import scale
from tests.sim.mutants import MUTANTS, planted
from tests.sim.scenario import THEMES, Outcome, simulate

BATCH = 50


def batch(first: int) -> list[Outcome]:
    return [simulate(seed) for seed in range(first, first + BATCH)]


def aloud(seed: int, theme: str, mutant: str) -> int:
    with planted(mutant):
        outcome = simulate(seed, print, theme)
    print(f"\nseed {seed}: {outcome.violation or outcome.state}; {sum(outcome.faults.values())} faults")
    return 1 if outcome.violation else 0


def many(first: int, faults: int, jobs: int) -> int:
    begun = time.monotonic()
    total: Counter[str] = Counter()
    states: Counter[str] = Counter()
    steps, generations, seeds, simulated = 0, 0, 0, 0.0
    violations: list[Outcome] = []
    with multiprocessing.Pool(jobs) as pool:
        while sum(total.values()) < faults:
            begins = range(first + seeds, first + seeds + 8 * jobs * BATCH, BATCH)
            for outcome in (each for outcomes in pool.imap(batch, begins) for each in outcomes):
                seeds += 1
                total.update(outcome.faults)
                states[outcome.state or "broken"] += 1
                steps += outcome.steps
                generations += outcome.generations
                simulated += outcome.seconds
                if outcome.violation is not None:
                    violations.append(outcome)
                    print(f"seed {outcome.seed}: {outcome.violation}", flush=True)
    took = time.monotonic() - begun
    print(f"seeds {first} to {first + seeds - 1} on {jobs} processes in {took:.0f} s")
    for kind, count in total.most_common():
        print(f"{count:10,d}  {kind}")
    print(f"{sum(total.values()):10,d}  faults in all")
    print(f"{steps:10,d}  steps, {steps / took:,.0f} a second; {simulated / 86400:.1f} days of simulated time")
    print(
        f"{generations:10,d}  generations; gangs: {', '.join(f'{n:,d} {state}' for state, n in states.most_common())}"
    )
    print(f"{len(violations):10,d}  violations")
    for outcome in violations[:10]:
        print(f"  make sim SEED={outcome.seed}")
    return 1 if violations else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this seed alone, aloud")
    parser.add_argument("--theme", default="", choices=("", *THEMES), help="what to make much of")
    parser.add_argument("--mutant", default="", choices=("", *MUTANTS), help="with this planted bug")
    parser.add_argument("--faults", type=int, default=1_000_000, help="play seeds until there were so many")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    args = parser.parse_args()
    if args.seed is not None:
        return aloud(args.seed, args.theme, args.mutant)
    code = many(args.first, args.faults, args.jobs)
    for line in scale.report():
        print(line)
    return code


if __name__ == "__main__":
    sys.exit(main())
