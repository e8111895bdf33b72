"""The run directory: which file is where. The same locally and on a cluster."""

from __future__ import annotations

import os
from typing import Optional

PLAN = "plan.json"
JOURNAL = "events.jsonl"
PROVENANCE = "provenance.json"
LOCK = "driver.lock"
DRIVER_LOG = "driver.log"
STOP = "stop"
VERDICT = "verdict.json"
ORDERS = "orders.json"
SERVING = "serving.json"
"""In the output of a stage that serves: where it answers, and one answer."""
FINGERPRINTS = "fingerprints.json"
MIRROR = ".mirror.json"
"""In a copy of a run that lives elsewhere: where, and whether it is alive."""
LEAST_FREE = 128 * 1024
"""Bytes; with less left on its disk a run cannot go on."""


def free_bytes(directory: str) -> Optional[int]:
    """Room on its disk; None where that does not say: many FUSE mounts report no blocks at all."""
    disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize if disk.f_blocks else None


def log(run_dir: str, stage: str, role: str, rank: int) -> str:
    return os.path.join(run_dir, "logs", stage, f"{role}-{rank}.log")


def reports(run_dir: str, stage: str, role: str, rank: int) -> str:
    return os.path.join(run_dir, "reports", stage, f"{role}-{rank}.jsonl")


def stacks(run_dir: str, stage: str, role: str, rank: int) -> str:
    return os.path.join(run_dir, "stacks", stage, f"{role}-{rank}.txt")


def output(run_dir: str, stage: str) -> str:
    return os.path.join(run_dir, "output", stage)


def models(run_dir: str, stage: str) -> str:
    """On a cluster: what a stage that serves has served, one numbered directory for each model."""
    return os.path.join(run_dir, "models", stage)


def run_of_output(path: str) -> str:
    """The run directory that a stage's output lies in."""
    return os.path.dirname(os.path.dirname(path))


def checkpoints(run_dir: str, stage: str, generation: int, owner: str = "") -> str:
    """A place of the generation's own: a fenced rank of an older one cannot write into it. `owner`
    names the rank where each has its own."""
    return os.path.join(checkpoints_of(run_dir, stage), f"generation-{generation}", owner).rstrip("/")


def part(number: int, count: int) -> str:
    """A file of a checkpoint: what one of so many ranks holds of the model."""
    return f"part-{number:05d}-of-{count:05d}.safetensors"


def checkpoints_of(run_dir: str, stage: str) -> str:
    return os.path.join(run_dir, "checkpoints", stage)


def superseded(run_dir: str, stage: str, attempt: int) -> str:
    """Where the results of a stage are put aside that was run anew."""
    return os.path.join(run_dir, "superseded", f"{stage}-{attempt}")


def storage(run_dir: str, mount: str) -> str:
    return os.path.join(run_dir, "storage", mount)
