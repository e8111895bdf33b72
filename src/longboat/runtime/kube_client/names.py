"""Names of a run's objects, labels and annotations, and paths in its pods; for pods and the CLI."""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping

PORT = 7077
"""The driver's port for agents."""
DEPOT_PORT = 7078
"""The port of the driver's file server."""

HOME = "/longboat"
SHIP = "/longboat/ship"
"""Read-only: the zipapp, the parts of the code tree, the plan and the pod templates."""
CODE = "/longboat/code"
BUILT = "/opt/longboat/code"
"""The code tree in an image made by `longboat build`: outside of HOME, which a volume covers."""
RUN = "/longboat/run"
TOKEN = "/longboat/token"
MODELS = "/longboat/models"
"""In a server's pod: the model, NAME/VERSION/... as in TensorFlow Serving."""
EVENTS = "/longboat/events"
"""In a TensorBoard pod: its event files."""
MOUNTS = "/longboat/mounts"
ARCHIVE = "longboat.pyz"
CONTAINER = "rank"
HELPER = "helper"
"""Part label of a helper pod that gives access to storage; also the name of its container."""
SERVER = "server"
"""Container of a model server, its role in the journal, and the part label of its objects."""
BOARD = "board"
"""Part label of TensorBoard."""
FETCHER = "model"
"""The init container that fetches the model."""

PROBE = "probe"
"""Part label of a pod that checks, before a run, what its pods will need."""

RUN_LABEL = "longboat.dev/run"
STAGE_LABEL = "longboat.dev/stage"
ROLE_LABEL = "longboat.dev/role"
RANK_LABEL = "longboat.dev/rank"
PART_LABEL = "longboat.dev/part"
"""Which part of a run an object is: root, driver, rank, ship, code, ..."""
STATE = "longboat.dev/state"
"""Annotation of the root: state of the run, for lists of runs."""
STARTED = "longboat.dev/started"
EXIT_CODE = "longboat.dev/code"
SUBMISSION = "longboat.dev/submission"
"""Annotation of the root: identifies the submission that created it, even if its response was lost."""
ORDERS = "orders.json"
"""Key of the root for the latest order: how to continue the run, and its number."""
ORDER = "longboat.dev/order"
"""Annotation of the driver's pod: the order that it was started for."""
MODEL = "longboat.dev/model"
"""Annotation of a server's pod: number of its model snapshot; another model gets another pod."""
SHARED = "longboat.dev/shared"
"""Annotation of the root: the run directory is on a volume that all pods mount."""

LOG = "longboat.dev/log"
"""Annotation of the root: level of the debug log of driver, agents and servers; off without it."""

SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
"""Annotation of pods: whether the cluster autoscaler may move them. A working rank is not idle."""

LINGER = 8.0
"""Seconds that a terminating server still takes requests, until the cluster sends it no more."""
LEASE = 60.0
"""Seconds that an agent keeps training without a driver; a lost node is given up after that and a margin."""

DRIVER_LEASE = 300.0
"""Seconds that a driver continues while the API server does not respond."""
DRIVER_MARGIN = 60.0
"""Seconds beyond that lease: for a last request that times out, and a drifting clock."""
DRIVER_TOLERATION = 60
"""Seconds after which the cluster deletes the driver's pod if its node does not respond."""


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


def board(run: str) -> str:
    return f"{run}-{BOARD}"


def ship(run: str, edition: str = "") -> str:
    """The ConfigMap with Longboat's own files. edition: of a resumed run; empty: of the first submission."""
    return f"{run}-ship" + (f"-{edition}" if edition else "")


def code(run: str, edition: str, number: int) -> str:
    """A ConfigMap with a part of the code tree."""
    return f"{run}-code-" + (f"{edition}-" if edition else "") + str(number)


def service(run: str, stage: str) -> str:
    """The Deployment and Service of a serve stage; a Service's name has at most 63 characters."""
    name = f"{run}-{stage}"
    if len(name) <= 63 and stage not in ("driver", BOARD):
        return name
    import hashlib

    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[:54].rstrip('-')}-{digest}"


def servers(stage: str) -> str:
    """The root's key for the objects of a serve stage."""
    return f"serve.{stage}.json"


def template(stage: str, role: str) -> str:
    """The root's key for the pod template of a role."""
    return f"pod.{stage}.{role}.json"


def order_in(root: Mapping[str, Any]) -> Dict[str, Any]:
    """The latest order of a run; empty if it was never resumed."""
    order: Dict[str, Any] = json.loads((root.get("data") or {}).get(ORDERS, "{}"))
    return order


def log_level(root: Mapping[str, Any]) -> str:
    """Level of the run's debug log; empty: off."""
    return str((root["metadata"].get("annotations") or {}).get(LOG, ""))


def selector(run: str, part: str = "") -> str:
    """The label selector of everything that belongs to a run, or of one part of it."""
    return f"{RUN_LABEL}={run}" + (f",{PART_LABEL}={part}" if part else "")


def labels(run: str, job: str, part: str) -> Dict[str, str]:
    return {
        "app.kubernetes.io/name": job,
        "app.kubernetes.io/instance": run,
        "app.kubernetes.io/component": part,
        "app.kubernetes.io/managed-by": "longboat",
        RUN_LABEL: run,
        PART_LABEL: part,
    }
