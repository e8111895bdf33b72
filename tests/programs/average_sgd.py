"""Trainers that meet only after each round: every rank trains on its own shard, then a merge averages.

`python average_sgd.py` trains, `python average_sgd.py merge` merges. The trainer of round r begins
with the merged weights of round r-1, or with its own checkpoint of this round.
"""

from __future__ import annotations

import hashlib
import os
import sys

import numpy as np
from numpy_sgd import EVERY, STEPS, Alone, Arrays, Witness, advance, finish, fresh, hold, meet_fate  # type: ignore[import-not-found]

import longboat

OUTPUT = os.environ["LONGBOAT_OUTPUT_DIR"]
ROUND = int(os.environ["LONGBOAT_ROUND"])


def left(name: str) -> Arrays:
    with np.load(os.path.join(OUTPUT, name)) as arrays:
        return dict(arrays)


def train() -> None:
    rank = int(os.environ["LONGBOAT_RANK"])
    witness = Witness(os.path.join(OUTPUT, "witness"), rank)
    state, first = (left(f"merged-{ROUND - 1}.npz") if ROUND > 1 else fresh()), 1
    found = longboat.checkpoint.load()
    if found is not None:
        state, first = dict(found.arrays), found.step + 1
    witness.say(f"round {ROUND} begins at step {first}")
    for step in range(first, STEPS + 1):
        loss = advance(state, STEPS * (ROUND - 1) + step, Alone(), shard=rank)
        longboat.report(step=step, total=STEPS, loss=loss)
        if step % EVERY == 0:
            longboat.checkpoint.save(state, step=step)
        meet_fate(witness.life, rank, step)
        if os.environ["LONGBOAT_ROUND"] == os.environ["LONGBOAT_ROUNDS"]:
            hold(step)
    finish(state, os.path.join(OUTPUT, f"worker-{rank}-{ROUND}.npz"))


def merge() -> None:
    if os.environ["LONGBOAT_GENERATION"] in os.environ.get("MERGE_DIES", "").split(","):
        os.abort()
    parts = [left(f"worker-{rank}-{ROUND}.npz") for rank in range(int(os.environ["LONGBOAT_WORKERS"]))]
    state = {name: sum(part[name] for part in parts) / len(parts) for name in parts[0] if name != "chain"}
    chains = hashlib.sha256(b"".join(part["chain"].tobytes() for part in parts)).digest()
    state["chain"] = np.frombuffer(chains, np.uint8)
    finish(state, os.path.join(OUTPUT, f"merged-{ROUND}.npz"))
    if os.environ["LONGBOAT_ROUND"] == os.environ["LONGBOAT_ROUNDS"]:
        finish(state, os.path.join(OUTPUT, "weights.npz"))


if __name__ == "__main__":
    merge() if sys.argv[1:] == ["merge"] else train()
