"""Measure runs on a real cluster, beside what Kubernetes alone does.

  make bench-cluster                                everything
  make bench-cluster BENCH="first-line --rounds 15"

KUBECONFIG names the cluster, else the test cluster is started. Prints Markdown. Exits with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys

from bench.cluster import crowd, first_line, killed, losses
from bench.cluster.ground import ground
from bench.harness import NotMeasured

BENCHES = {
    "first-line": first_line.measure,
    "losses": losses.measure,
    "killed": killed.measure,
    "crowd": crowd.measure,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make bench-cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHES))
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contender (default: 7)")
    args = parser.parse_args()
    if unknown := set(args.names) - set(BENCHES):
        parser.error(f"no bench {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)}")
    missed = 0
    with ground() as place:
        version = place.cluster.api.request("GET", "/version")["gitVersion"]
        cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
        print(f"{platform.platform()}, Kubernetes {version}, {cores} cores, load {load:.1f} at the start\n", flush=True)
        for name in args.names or BENCHES:
            try:
                found = BENCHES[name](place, args.rounds)
            except NotMeasured as why:
                print(f"### {name}\n\nnot measured: {why}\n", flush=True)
                continue
            print(found.text, flush=True)
            missed += found.missed
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
