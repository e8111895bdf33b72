"""Pods of a training run deleted at random, rank 0's too: how soon all train again, and whether anything is missing.

Deleted, with and without a grace period, a pod's agent can still say goodbye. Unannounced, its node is
cut off: nothing may start before its lease is over, for it may still be training. That takes a cluster
whose nodes are ours.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

from bench.cluster.ground import Ground
from bench.cluster.report import Kept, Report, table
from bench.harness import Series
from longboat.runtime.kube_client import names
from longboat.runtime.pod.pod_launcher import MARGIN
from tests.e2e.breaking import OURS
from tests.e2e.hunt import cut, hunt
from tests.e2e.place import Place

LOSSES = int(os.environ.get("LOSSES", "20"))
MOST = 10.0
"""Seconds from an announced loss to training again."""


def measure(ground: Ground, _rounds: int) -> Report:
    place = Place(ground.namespace, Path(ground.directory))
    seed = int(os.environ.get("SEED", "1"))
    announced = hunt(place, LOSSES, random.Random(seed), grace=None)
    ground.empty()
    forced = hunt(place, 1, random.Random(seed), grace=0)
    ground.empty()
    lost = [cut(place)] if OURS else []
    ground.empty()
    slowest = max(announced.seconds)
    kept = [
        Kept(f"{LOSSES} of {LOSSES} resumed", announced.state, announced.state == "succeeded"),
        Kept("weights of an undisturbed run", "identical" if announced.same else "differ", announced.same),
        Kept("no line lost", f"{announced.missing} lives lack one", announced.missing == 0),
        Kept("survivors keep their pods", f"{announced.replaced} were replaced", announced.replaced == 0),
        Kept(f"announced: training again within {MOST:g} s", f"{slowest:.1f} s at most", slowest <= MOST),
        Kept("by force: the run ends right", forced.state, forced.state == "succeeded" and forced.same),
    ]
    lease = f"its node cut off (lease {names.LEASE:g} s and {MARGIN:g} s of margin)"
    rows = [_row("deleted", announced.seconds), _row("deleted by force", forced.seconds), _row(lease, lost)]
    headers = ["pod", "losses", "training again, s: least", "median", "most"]
    return table("losses", f"Three ranks in step, seed {seed}.", headers, rows, kept)


def _row(what: str, seconds: Sequence[float]) -> list[str]:
    if not seconds:
        return [what, "not measured", "", "", ""]
    series = Series(tuple(seconds))
    figures = (min(series.values), series.median, max(series.values))
    return [what, str(len(seconds)), *(f"{value:.1f}" for value in figures)]
