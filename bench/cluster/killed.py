"""`longboat run` killed -9 at any moment of submitting: nothing may be left that nobody finds and removes."""

from __future__ import annotations

import signal
import subprocess
import time

from bench.cluster.ground import Ground
from bench.cluster.report import Kept, Report, table
from longboat.engines.kubernetes.cluster import OWNED
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import Manifest

TIMES = 10
STEP = 0.015
"""Seconds by which each kill comes later than the one before; the first is at once when the root is made."""
SETTLED = 1.0
PATIENCE = 120.0


def measure(ground: Ground, _rounds: int) -> Report:
    job = ground.job(f"name: cut\nimage: {ground.image}\nshape: allreduce\nranks: 3\nrun: sleep 60\n")
    words = [*ground.longboat, "run", str(job), "--on", "kubernetes", "-n", ground.namespace]
    begun = time.monotonic()
    subprocess.run([*words, "--detach"], env=ground.environ, check=True, capture_output=True)
    whole = time.monotonic() - begun
    ground.empty()
    rows, left_over, unowned = [], 0, 0
    for number in range(TIMES):
        delay = STEP * number
        watch = ground.cluster.api.watch("ConfigMap", f"{names.PART_LABEL}=root")
        next(watch)
        process = subprocess.Popen(words, env=ground.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        next(watch)  # the root is there
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        watch.close()
        time.sleep(SETTLED)  # what was on its way has arrived
        found = _objects(ground)
        orphans = [o for o in found if not o["metadata"].get("ownerReferences") and not _is_root(o)]
        unowned += len(orphans)
        listed = subprocess.run(
            [*ground.longboat, "left", "--on", "kubernetes", "-n", ground.namespace],
            env=ground.environ,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        seen = all(run.id in listed for run in ground.cluster.runs())
        for run in ground.cluster.runs():
            remove = [*ground.longboat, "rm", "--force", run.id, "--on", "kubernetes", "-n", ground.namespace]
            subprocess.run(remove, env=ground.environ, check=True, capture_output=True)
        due = time.monotonic() + PATIENCE
        while _objects(ground) and time.monotonic() < due:
            time.sleep(0.2)
        rest = len(_objects(ground))
        left_over += rest
        rows.append([f"{delay:.3f}", str(len(found)), str(len(orphans)), "yes" if seen else "NO", str(rest)])
    headers = ["killed after the root, s", "objects then", "without an owner", "listed by `left`", "after `rm`"]
    kept = [
        Kept("no object without an owner", str(unowned), unowned == 0),
        Kept("nothing left after `rm`", str(left_over), left_over == 0),
    ]
    return table("a killed submission", f"Submitting takes {whole:.2f} s when nobody kills it.", headers, rows, kept)


def _objects(ground: Ground) -> list[Manifest]:
    """All of Longboat's in the namespace, found by every kind, not by the root."""
    api, selector = ground.cluster.api, "app.kubernetes.io/managed-by=longboat"
    return [obj for kind in OWNED for obj in api.list(kind, selector)]


def _is_root(obj: Manifest) -> bool:
    return bool((obj["metadata"].get("labels") or {}).get(names.PART_LABEL) == "root")
