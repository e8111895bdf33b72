"""Which ranks have buckets around their command. Light: every agent imports this."""

from __future__ import annotations

import sys
from typing import List, Tuple

from longboat.runtime.plan import Mount, Plan

SCHEMES = ("s3", "gs")
READ_ONLY = ":ro"
CANNOT, REFUSED = 74, 77
"""Exit codes when a bucket could not be read or written, and when a later try would not help: the standard's
EX_IOERR and EX_NOPERM."""
COMPLAINT = "error: storage "
"""How the line begins that says why."""


def wrapped(plan: Plan, command: Tuple[str, ...]) -> Tuple[str, ...]:
    """The command of a rank with its buckets around it; the command itself where there are none."""
    words = [f"{mount.name}={mount.source}{READ_ONLY if mount.read_only else ''}" for mount in bucket_mounts(plan)]
    return (sys.executable, "-m", "longboat.runtime.buckets", *words, "--", *command) if words else command


def bucket_mounts(plan: Plan) -> List[Mount]:
    return [mount for mount in plan.storage if mount.kind in SCHEMES]
