"""Names of a run's objects, labels and annotations, and paths in its pods, for pods and CLI alike."""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping

PORT = 7077
"""Where the driver listens for agents."""
DEPOT_PORT = 7078
"""Where the driver's depot takes and gives files."""

HOME = "/longboat"
SHIP = "/longboat/ship"
"""The zipapp, the parts of the code tree, the plan and the pods to come: read-only."""
CODE = "/longboat/code"
BUILT = "/opt/longboat/code"
"""The code tree in an image that `longboat build` made: outside of HOME, which a volume covers."""
RUN = "/longboat/run"
TOKEN = "/longboat/token"
MODELS = "/longboat/models"
"""In a server's pod: the model, NAME/VERSION/... as TensorFlow Serving has it."""
EVENTS = "/longboat/events"
"""In the board's pod: what TensorBoard reads."""
MOUNTS = "/longboat/mounts"
ARCHIVE = "longboat.pyz"
CONTAINER = "rank"
HELPER = "helper"
"""The part of a run that a pod is which comes and goes to look into storage; its container has the same name."""
SERVER = "server"
"""The container of a server, its role in the journal, and the part of a run that its objects are."""
BOARD = "board"
"""The part of a run that its TensorBoard is."""
FETCHER = "model"
"""The container that brings the model before the server starts."""

PROBE = "probe"
"""The part that a pod is which tries, before a run, what its pods will need."""

RUN_LABEL = "longboat.dev/run"
STAGE_LABEL = "longboat.dev/stage"
ROLE_LABEL = "longboat.dev/role"
RANK_LABEL = "longboat.dev/rank"
PART_LABEL = "longboat.dev/part"
"""root, driver, rank, ship, code, ...: which part of a run an object is."""
STATE = "longboat.dev/state"
"""Annotation of the root: how the run stands, for who lists runs."""
STARTED = "longboat.dev/started"
EXIT_CODE = "longboat.dev/code"
SUBMISSION = "longboat.dev/submission"
"""Annotation of the root: who made it knows it by this, also when nobody heard that it was made."""
ORDERS = "orders.json"
"""The root's key for what was asked for last: how the run is to go on, and under which number."""
ORDER = "longboat.dev/order"
"""Annotation of the driver's pod: the order that it was started for."""
MODEL = "longboat.dev/model"
"""Annotation of a server's pod: which of the models that this run has served; another one is another pod."""
SHARED = "longboat.dev/shared"
"""Annotation of the root: the run directory is on a volume that all pods mount."""

SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
"""Annotation of pods: whether a cluster that grows smaller may move them. A rank that works is not idle."""

LINGER = 8.0
"""Seconds for which a server that is to end goes on taking requests, until the cluster sends it no more."""
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


def board(run: str) -> str:
    return f"{run}-{BOARD}"


def ship(run: str, edition: str = "") -> str:
    """The ConfigMap with Longboat's own part. edition: of what the run goes on with; empty: what it began with."""
    return f"{run}-ship" + (f"-{edition}" if edition else "")


def code(run: str, edition: str, number: int) -> str:
    """A ConfigMap with a part of the code tree."""
    return f"{run}-code-" + (f"{edition}-" if edition else "") + str(number)


def service(run: str, stage: str) -> str:
    """The Deployment and the Service of a stage that serves; a Service's name has at most 63 letters."""
    name = f"{run}-{stage}"
    if len(name) <= 63 and stage not in ("driver", BOARD):
        return name
    import hashlib

    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[:54].rstrip('-')}-{digest}"


def servers(stage: str) -> str:
    """The key under which the root holds the objects of a stage that serves."""
    return f"serve.{stage}.json"


def template(stage: str, role: str) -> str:
    """The key under which the root holds the pod of a role."""
    return f"pod.{stage}.{role}.json"


def order_in(root: Mapping[str, Any]) -> Dict[str, Any]:
    """What a run was asked for last; empty if it never was asked to go on."""
    told: Dict[str, Any] = json.loads((root.get("data") or {}).get(ORDERS, "{}"))
    return told


def selector(run: str, part: str = "") -> str:
    """One selector lists all that belongs to a run."""
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
