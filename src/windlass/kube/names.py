"""What the objects of a run are called, and where things are in its pods: shared by who writes them and who reads them.

Ships into strangers' images: standard library only, Python 3.9.
"""

from __future__ import annotations

from typing import Dict

PORT = 7077
"""Where the driver listens for agents."""
DEPOT_PORT = 7078
"""Where the driver's depot takes and gives files."""

HOME = "/windlass"
SHIP = "/windlass/ship"
"""The zipapp, the parts of the code tree, the plan and the pods to come: read-only."""
CODE = "/windlass/code"
BUILT = "/opt/windlass/code"
"""The code tree in an image that `windlass build` made: outside of HOME, which a volume covers."""
RUN = "/windlass/run"
TOKEN = "/windlass/token"
MOUNTS = "/windlass/mounts"
ARCHIVE = "windlass.pyz"
CONTAINER = "rank"
HELPER = "helper"
"""The part of a run that a pod is which comes and goes to look into storage; its container has the same name."""

PROBE = "probe"
"""The part that a pod is which tries, before a run, what its pods will need."""

RUN_LABEL = "windlass.dev/run"
STAGE_LABEL = "windlass.dev/stage"
ROLE_LABEL = "windlass.dev/role"
RANK_LABEL = "windlass.dev/rank"
PART_LABEL = "windlass.dev/part"
"""root, driver, rank, ship, code, ...: which part of a run an object is."""
STATE = "windlass.dev/state"
"""Annotation of the root: how the run stands, for who lists runs."""
STARTED = "windlass.dev/started"
RESUME = "windlass.dev/resume"
"""Annotation of the root: the number of the journal's last event, behind which the run is to go on."""
SHARED = "windlass.dev/shared"
"""Annotation of the root: the run directory is on a volume that all pods mount."""

SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
"""Annotation of pods: whether a cluster that grows smaller may move them. A rank that works is not idle."""

LEASE = 60.0
"""Seconds that an agent trains on without a driver; a lost node is given up after that and a margin."""

DRIVER_LEASE = 300.0
"""Seconds that a driver drives on while the API server does not answer it."""
DRIVER_MARGIN = 60.0
"""Seconds beyond that lease: a last question that is not answered in its time, a clock that drifts."""
DRIVER_LOST = 60
"""Seconds after which the cluster tells the driver's pod to go when its node does not answer."""


def driver(run: str) -> str:
    return f"{run}-driver"


def driver_pod(run: str) -> str:
    return f"{run}-driver-0"


def token(run: str) -> str:
    return f"{run}-token"


def secrets(run: str) -> str:
    return f"{run}-secrets"


def volume(run: str) -> str:
    return f"{run}-run"


def template(stage: str, role: str) -> str:
    """The key under which the root holds the pod of a role."""
    return f"pod.{stage}.{role}.json"


def selector(run: str, part: str = "") -> str:
    """One selector lists all that belongs to a run."""
    return f"{RUN_LABEL}={run}" + (f",{PART_LABEL}={part}" if part else "")


def labels(run: str, job: str, part: str) -> Dict[str, str]:
    return {
        "app.kubernetes.io/name": job,
        "app.kubernetes.io/instance": run,
        "app.kubernetes.io/component": part,
        "app.kubernetes.io/managed-by": "windlass",
        RUN_LABEL: run,
        PART_LABEL: part,
    }
