"""Deletes pods of a run at random moments and prints how long training took to go on: `python -m tests.e2e.hunt`.

    python -m tests.e2e.hunt NAMESPACE [LOSSES] [SEED]

The job trains long enough to lose as many pods; at the end the weights must be those of an undisturbed run, and no line
of any log may be missing. KUBECONFIG names the cluster; the namespace must exist.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from tests.e2e import jobs
from tests.e2e.place import Place, lives, told


def main(namespace: str, losses: int, seed: int) -> int:
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        place = Place(namespace, Path(directory))
        steps = losses * 40
        plain = place.run(place.job(jobs.gang(steps, 0.0), "gang_sgd.py"))
        weights = place.file(plain, "output/train/weights.hex")
        place.cluster.remove(plain)
        run = place.start(place.job(jobs.gang(steps, 0.15), "gang_sgd.py"))
        seconds = []
        for number in range(1, losses + 1):
            place.until(lambda number=number: _training(place, run, number))  # type: ignore[misc]
            time.sleep(draw.uniform(0.0, 3.0))
            seat = draw.choice(sorted(place.pods(run)))
            at = time.time()
            place.cluster.api.delete("Pod", place.pods(run)[seat]["metadata"]["name"])
            again = place.until(lambda number=number: _training(place, run, number + 1))  # type: ignore[misc]
            seconds.append(again - at)
            print(f"{number:2} {seat}: training again after {again - at:.1f} s", flush=True)
        last = place.ended(run)
        events = place.events(run)
        missing = 0
        for rank in range(3):
            written, said = lives(place.log(run, rank)), told(events, rank)
            for life, numbers in written.items():
                missing += numbers != list(range(len(numbers))) or len(numbers) <= said.get(life.split(".")[0], -1)
        same = place.file(run, "output/train/weights.hex") == weights
        place.cluster.remove(run)
    seconds.sort()
    print(
        f"{losses} pods deleted (seed {seed}): {last['state']}, weights {'identical' if same else 'DIFFER'}, "
        f"{missing} lives with lines missing; training again after {seconds[0]:.1f} to {seconds[-1]:.1f} s, "
        f"median {seconds[len(seconds) // 2]:.1f} s"
    )
    return 0 if last["state"] == "succeeded" and same and not missing else 1


def _training(place: Place, run: str, generation: int) -> float:
    """When all ranks of a generation had started; 0: they have not."""
    started = [e for e in place.events(run) if e["ev"] == "rank.started" and e["gen"] == generation]
    return max(e["t"] for e in started) if len({e["rank"] for e in started}) == 3 else 0.0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int((sys.argv[2:3] or ["20"])[0]), int((sys.argv[3:4] or ["1"])[0])))
