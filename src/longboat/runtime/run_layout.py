"""Layout of the run directory: names and paths of its files, the same locally and on a cluster."""

from __future__ import annotations

import os
from typing import Optional, Tuple

PLAN = "plan.json"
JOURNAL = "events.jsonl"
PROVENANCE = "provenance.json"
LOCK = "driver.lock"
DRIVER_LOG = "driver.log"
STOP = "stop"
VERDICT = "verdict.json"
ORDERS = "orders.json"
SERVING = "serving.json"
"""In the output of a serve stage: its address, and one example with its answer."""
FINGERPRINTS = "fingerprints.json"
REPLICA = ".replica.json"
"""In a replica of a run: where the run is, and whether it is alive."""
LEAST_FREE = 128 * 1024
"""Bytes; a run with less free space on its disk cannot continue."""


def free_bytes(directory: str) -> Optional[int]:
    """Free bytes on a directory's disk; None if unknown: many FUSE mounts report no blocks."""
    disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize if disk.f_blocks else None


def log(run_dir: str, stage: str, role: str, rank: int) -> str:
    return os.path.join(run_dir, "logs", stage, f"{role}-{rank}.log")


def agent_log(run_dir: str, stage: str, role: str, rank: int) -> str:
    """The debug log of a rank's agent, on this machine."""
    return os.path.join(run_dir, "agents", stage, f"{role}-{rank}.log")


def reports(run_dir: str, stage: str, role: str, rank: int) -> str:
    return os.path.join(run_dir, "reports", stage, f"{role}-{rank}.jsonl")


def stacks(run_dir: str, stage: str, role: str, rank: int) -> str:
    return os.path.join(run_dir, "stacks", stage, f"{role}-{rank}.txt")


def output(run_dir: str, stage: str) -> str:
    return os.path.join(run_dir, "output", stage)


def models(run_dir: str, stage: str) -> str:
    """On a cluster: snapshots of the models that a stage served, one numbered directory each."""
    return os.path.join(run_dir, "models", stage)


def run_of_output(path: str) -> str:
    """The run directory of a stage's output."""
    return os.path.dirname(os.path.dirname(path))


def checkpoints(run_dir: str, stage: str, generation: int, owner: str = "") -> str:
    """Checkpoint directory of one generation: a fenced rank of an older one cannot write into it. `owner` is the rank,
    if each has its own."""
    return os.path.join(checkpoints_of(run_dir, stage), f"generation-{generation}", owner).rstrip("/")


def part(number: int, count: int) -> str:
    """File name of a checkpoint part: part `number` of `count`."""
    return f"part-{number:05d}-of-{count:05d}.safetensors"


def part_numbers(name: str) -> Tuple[int, int]:
    """Number and count of a checkpoint part; (0, 0) if the name is not that of a finished part."""
    words = name.partition(".")[0].split("-")
    numbers = [int(word) for word in words if word.isdigit()]
    return (numbers[0], numbers[1]) if len(numbers) == 2 and part(numbers[0], numbers[1]) == name else (0, 0)


def checkpoints_of(run_dir: str, stage: str) -> str:
    return os.path.join(run_dir, "checkpoints", stage)


def manifest(stage: str) -> str:
    """The list of a stage's complete checkpoints, relative to the run directory."""
    return os.path.join("checkpoints", stage, "manifest.json")


def superseded(run_dir: str, stage: str, attempt: int) -> str:
    """Directory for the archived results of a stage that was run again."""
    return os.path.join(run_dir, "superseded", f"{stage}-{attempt}")


def storage(run_dir: str, mount: str) -> str:
    return os.path.join(run_dir, "storage", mount)
