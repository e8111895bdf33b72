"""Deletes pods of a run at random moments and says how long training took to go on: `python -m tests.e2e.hunt`.

    python -m tests.e2e.hunt NAMESPACE [LOSSES] [SEED]

The job trains long enough to lose as many pods; at the end the weights must be those of an undisturbed run, no line
of any log may be missing, and no pod but the lost ones may have been replaced. KUBECONFIG names the cluster; the
namespace must exist.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from longboat.runtime.kube_client import names
from tests.e2e import jobs
from tests.e2e.breaking import cluster
from tests.e2e.place import Place, lives, told

RANKS = 3


@dataclass
class Hunt:
    seconds: list[float] = field(default_factory=list)
    """From each deletion until all ranks of the next generation had started."""
    state: str = ""
    same: bool = False
    """The weights are those of an undisturbed run."""
    missing: int = 0
    """Lives that lack a line."""
    replaced: int = 0
    """Survivors' pods that were replaced."""


def hunt(place: Place, losses: int, draw: random.Random, grace: int | None = None, loud: bool = False) -> Hunt:
    """grace 0: by force, without a word to the pod."""
    found, steps = Hunt(), max(losses * 40, 80)
    plain = place.run(place.job(jobs.gang(steps, 0.0), "gang_sgd.py"))
    weights = place.file(plain, "output/train/weights.hex")
    place.cluster.remove(plain)
    run = place.start(place.job(jobs.gang(steps, 0.15), "gang_sgd.py"))
    for number in range(1, losses + 1):
        place.until(lambda number=number: _training(place, run, number))  # type: ignore[misc]
        time.sleep(draw.uniform(0.0, 3.0))
        before = place.pods(run)
        seat = draw.choice(sorted(before))
        at = time.time()
        place.cluster.api.delete("Pod", before[seat]["metadata"]["name"], grace=grace)
        again = place.until(lambda number=number: _training(place, run, number + 1))  # type: ignore[misc]
        found.seconds.append(again - at)
        after = place.pods(run)
        kept = [before[each]["metadata"]["uid"] == after[each]["metadata"]["uid"] for each in before if each != seat]
        found.replaced += kept.count(False)
        if loud:
            print(f"{number:2} {seat}: training again after {again - at:.1f} s", flush=True)
    found.state = str(place.ended(run)["state"])
    events = place.events(run)
    for rank in range(RANKS):
        written, said = lives(place.log(run, rank)), told(events, rank)
        for life, numbers in written.items():
            found.missing += numbers != list(range(len(numbers))) or len(numbers) <= said.get(life.split(".")[0], -1)
    found.same = place.file(run, "output/train/weights.hex") == weights
    place.cluster.remove(run)
    return found


def cut(place: Place) -> float:
    """Cuts the node of a rank off without a word, on a cluster of ours; seconds until all ranks train again."""
    run = place.start(place.job(jobs.gang(400, 0.15), "gang_sgd.py"))
    place.until(lambda: _training(place, run, 1))
    home = place.cluster.api.get("Pod", names.driver_pod(run))["spec"]["nodeName"]
    node = next(str(p["spec"]["nodeName"]) for p in place.pods(run).values() if p["spec"]["nodeName"] != home)
    cluster("net-cut", node.removeprefix("node"))
    try:
        at = time.time()
        return place.until(lambda: _training(place, run, 2)) - at
    finally:
        cluster("net-heal", node.removeprefix("node"))
        place.cluster.remove(run)


def main(namespace: str, losses: int, seed: int) -> int:
    with tempfile.TemporaryDirectory() as directory:
        found = hunt(Place(namespace, Path(directory)), losses, random.Random(seed), loud=True)
    found.seconds.sort()
    print(
        f"{losses} pods deleted (seed {seed}): {found.state}, weights {'identical' if found.same else 'DIFFER'}, "
        f"{found.missing} lives with lines missing, {found.replaced} survivors replaced; training again after "
        f"{found.seconds[0]:.1f} to {found.seconds[-1]:.1f} s, median {found.seconds[losses // 2]:.1f} s"
    )
    return 0 if found.state == "succeeded" and found.same and not found.missing and not found.replaced else 1


def _training(place: Place, run: str, generation: int) -> float:
    """When all ranks of a generation had started; 0: they have not."""
    started = [e for e in place.events(run) if e["ev"] == "rank.started" and e["gen"] == generation]
    return max(e["t"] for e in started) if len({e["rank"] for e in started}) == RANKS else 0.0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int((sys.argv[2:3] or ["20"])[0]), int((sys.argv[3:4] or ["1"])[0])))
