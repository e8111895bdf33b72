"""Measure Longboat beside its peers, and say whether the targets are met.

  make bench                         everything
  make bench BENCH="launch planning --rounds 15"

Prints Markdown; writes the single figures to bench/results/. Exits with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys

from bench.benches import everything
from bench.harness import Result, markdown, measure
from bench.places import ROOT


def main() -> int:
    benches = everything()
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(benches))
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contender (default: 7)")
    args = parser.parse_args()
    if unknown := set(args.names) - set(benches):
        parser.error(f"no bench {', '.join(sorted(unknown))}; there are {', '.join(benches)}")
    load = os.getloadavg()[0]
    cores = len(os.sched_getaffinity(0))
    print(f"{platform.platform()}, Python {platform.python_version()}, {cores} cores, load {load:.1f} at the start\n")
    missed = 0
    for name in args.names or benches:
        for bench in benches[name]():
            result = measure(bench, args.rounds)
            print(markdown(result), flush=True)
            _keep(result)
            missed += sum(verdict.state == "missed" for verdict in result.verdicts)
    return 1 if missed else 0


def _keep(result: Result) -> None:
    directory = ROOT / "bench/results"
    directory.mkdir(exist_ok=True)
    text = json.dumps(
        {
            "bench": result.bench.name,
            "unit": result.bench.unit,
            "values": {contender: series.values for contender, series in result.series.items()},
            "skipped": dict(result.skipped),
            "verdicts": {verdict.says: verdict.state for verdict in result.verdicts},
        },
        indent=2,
    )
    (directory / f"{result.bench.name.replace(':', '').replace(' ', '-')}.json").write_text(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
