"""Mounts backed by buckets, and the wrapper around a rank's command. Light: every agent imports this."""

from __future__ import annotations

import sys
from typing import List, Tuple

from longboat.runtime.plan import Mount, Plan

SCHEMES = ("s3", "gs")
READ_ONLY = ":ro"
CANNOT, REFUSED = 221, 222
"""Exit codes if a bucket could not be read or written, and if a retry would not help. Few programs use them."""


def wrapped(plan: Plan, command: Tuple[str, ...]) -> Tuple[str, ...]:
    """A rank's command inside the bucket wrapper; the command itself if no mount needs it."""
    mounts = [f"{mount.name}={mount.source}{READ_ONLY if mount.read_only else ''}" for mount in bucket_mounts(plan)]
    return (sys.executable, "-m", "longboat.runtime.buckets", *mounts, "--", *command) if mounts else command


def bucket_mounts(plan: Plan) -> List[Mount]:
    return [mount for mount in plan.storage if mount.kind in SCHEMES]
