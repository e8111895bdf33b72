"""What the state of a pod means."""

from __future__ import annotations

import pytest

from longboat.runtime.causes import CauseKind
from longboat.runtime.errors import PACKAGES_MISSING, PYTHON_TOO_OLD
from longboat.runtime.kube_client import quota
from longboat.runtime.kube_client.api import ApiError, Manifest
from longboat.runtime.pod import pod_status
from longboat.runtime.seat import Seat

SEAT = Seat("train", "worker", 3)


def pod(status: Manifest, node: str = "n1", deleted: bool = False) -> Manifest:
    meta: Manifest = {"name": "p"}
    if deleted:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    limits = {"limits": {"memory": "1Gi"}, "requests": {"cpu": "4"}}
    spec = {"nodeName": node, "containers": [{"image": "x:1", "resources": limits}]}
    return {"metadata": meta, "spec": spec, "status": status}


def over(reason: str = "", code: int = 1, message: str = "") -> Manifest:
    done = {"exitCode": code, "reason": reason, "message": message}
    return {"phase": "Failed", "containerStatuses": [{"image": "x:1", "state": {"terminated": done}}]}


def held(reason: str, message: str = "") -> Manifest:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"image": "x:1", "state": state}]}


OVERFULL = "Pod ephemeral local storage usage exceeds the total limit of containers 20Mi. "
NO_PYTHON = 'exec: "python3": executable file not found in $PATH'


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (over("OOMKilled", 137), CauseKind.OUT_OF_MEMORY, "1Gi"),
        (over("Error", 1, "the agent stopped: no route"), CauseKind.AGENT_LOST, "no route"),
        (over("StartError", 128, NO_PYTHON), CauseKind.NO_PYTHON, "x:1 has no python3"),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, CauseKind.PREEMPTED, "low on memory"),
        (
            {"phase": "Failed", "reason": "Evicted", "message": OVERFULL},
            CauseKind.DISK_FULL,
            "limit of containers 20Mi",
        ),
        (
            over("Error", PYTHON_TOO_OLD, "error: Longboat needs Python 3.9 or newer, and the image has 3.6"),
            CauseKind.NO_PYTHON,
            "the Python of the image x:1 is too old",
        ),
        (
            over("Error", PACKAGES_MISSING, "pip\nerror: cannot install tool in the pod: the image has no pip"),
            CauseKind.MISSING_INPUT,
            "cannot install tool in the pod: the image has no pip",
        ),
        ({"phase": "Failed", "reason": "NodeLost"}, CauseKind.NODE_LOST, "n1"),
    ],
)
def test_how_a_pod_ended(status: Manifest, kind: CauseKind, words: str) -> None:
    cause = pod_status.ended(pod(status), SEAT)
    assert (cause.kind, cause.role, cause.rank) == (kind, "worker", 3)
    assert words in cause.message


def test_a_pod_that_was_deleted_was_taken_away() -> None:
    assert pod_status.ended(pod(over("Error", 143), deleted=True), SEAT).kind is CauseKind.PREEMPTED


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (held("ImagePullBackOff", "not found"), CauseKind.IMAGE_PULL, "cannot pull image x:1: not found"),
        (held("RunContainerError", NO_PYTHON), CauseKind.NO_PYTHON, "no python3"),
        (held("CreateContainerConfigError", 'secret "s" not found'), CauseKind.NOT_EXECUTABLE, 'secret "s" not found'),
    ],
)
def test_what_a_pod_waits_for(status: Manifest, kind: CauseKind, words: str) -> None:
    cause = pod_status.waiting(pod(status), SEAT)
    assert cause is not None
    assert cause.kind is kind
    assert words in cause.message


def test_a_pod_without_a_place_is_told_with_what_it_asks_for() -> None:
    message = "0/3 nodes are available: 3 Insufficient cpu. preemption: 0/3 nodes are available."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    cause = pod_status.waiting(pod({"conditions": [condition]}, node=""), SEAT)
    assert cause is not None
    assert cause.kind is CauseKind.UNSCHEDULABLE
    assert cause.message.startswith("0/3 nodes are available: 3 Insufficient cpu. (each worker requests")
    assert "4 cpu" in cause.message


def test_a_pod_that_runs_waits_for_nothing() -> None:
    running = {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}
    assert pod_status.waiting(pod(running), SEAT) is None


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (403, 'pods "p" is forbidden: exceeded quota: small, requested: pods=1', CauseKind.QUOTA),
        (403, 'pods "p" is forbidden: violates PodSecurity "restricted:latest"', CauseKind.REFUSED),
        (403, 'User "x" cannot create resource "pods" in API group "" in the namespace "n"', CauseKind.FORBIDDEN),
        (422, "spec.containers[0].image: Required value", CauseKind.REFUSED),
    ],
)
def test_why_a_pod_was_refused(status: int, message: str, kind: CauseKind) -> None:
    cause = pod_status.refused(ApiError(status, "", message), SEAT)
    assert (cause.kind, cause.message) == (kind, message)


@pytest.mark.parametrize(
    ("amounts", "pods", "never"),
    [
        ("requested: pods=1, used: pods=4, limited: pods=4", 4, False),
        ("requested: pods=1, used: pods=4, limited: pods=4", 5, True),
        ("requested: cpu=500m,memory=2Gi, used: cpu=3,memory=7Gi, limited: cpu=4,memory=8Gi", 4, False),
        ("requested: cpu=500m,memory=2Gi, used: cpu=3,memory=7Gi, limited: cpu=4,memory=8Gi", 5, True),
        ("requested: memory=9Gi, used: memory=0, limited: memory=8Gi", 1, True),
        ("words of another version", 1000, False),
        ("requested: pods=some, limited: pods=none", 1000, False),
    ],
)
def test_what_a_quota_never_has_room_for(amounts: str, pods: int, never: bool) -> None:
    assert quota.never_fits(f'pods "p" is forbidden: exceeded quota: small, {amounts}', pods) is never


def test_a_container_that_ends_again_and_again_is_explained_by_its_last_end() -> None:
    status = held("CrashLoopBackOff", "back-off 10s restarting failed container")
    done = {"exitCode": 1, "reason": "Error", "message": "ModuleNotFoundError: No module named 'json'"}
    status["containerStatuses"][0] |= {"lastState": {"terminated": done}, "restartCount": 3}
    cause = pod_status.waiting(pod(status), SEAT)
    assert cause is not None
    assert "No module named 'json'" in cause.message
    assert "it exited 3 times and is being restarted" in cause.evidence


def test_a_right_that_is_lacking_is_told_with_what_gives_it() -> None:
    message = (
        'pods is forbidden: User "system:serviceaccount:team:longboat-driver" cannot create resource "pods" '
        'in API group "" in the namespace "team"'
    )
    cause = pod_status.refused(ApiError(403, "Forbidden", message), SEAT)
    assert cause.kind is CauseKind.FORBIDDEN
    assert cause.evidence == (
        'a Role with this rule grants it: {apiGroups: [""], resources: ["pods"], verbs: ["create"]}',
        "kubectl create role longboat-create-pods --verb=create --resource=pods -n team",
        (
            "kubectl create rolebinding longboat-create-pods --role=longboat-create-pods "
            "--serviceaccount=team:longboat-driver -n team"
        ),
    )
