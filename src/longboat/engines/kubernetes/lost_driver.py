"""A driver whose node does not answer: when its pod may be deleted by force, so that another one can start.

The pod stays in deletion, and the StatefulSet creates no second one beside it. Only a forced delete removes it. That is
safe once the driver must have exited by itself: its lease (`runtime.pod.leadership`) and a margin after the deletion
was requested, by the API server's clock, because this machine's may be wrong.
"""

from __future__ import annotations

import time

from longboat.engines.kubernetes import kube_config
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import Manifest

UNHEEDED = 30.0
"""Seconds after its grace period after which a pod in deletion counts as lost."""


def over(pod: Manifest) -> float:
    """When a driver in deletion has stopped for sure, even if its node never got the request; 0: not in deletion."""
    deletion = pod["metadata"].get("deletionTimestamp")
    return kube_config.moment(deletion) + _lease(pod) + names.DRIVER_MARGIN if deletion else 0.0


def cause(pod: Manifest, now: float) -> Cause | None:
    """Why a driver's pod is not deleted; None while it may still be terminating."""
    deletion = pod["metadata"].get("deletionTimestamp")
    if not deletion or now < kube_config.moment(deletion) + UNHEEDED:
        return None
    node = pod.get("spec", {}).get("nodeName", "its node")
    at = time.strftime("%H:%M:%S", time.localtime(over(pod)))
    message = (
        f"{node} does not answer; whoever asks after {at} has the driver made elsewhere: by then it has left there"
    )
    return Cause(
        CauseKind.NODE_LOST, message, role="driver", rank=0, evidence=(f"pod {pod['metadata']['name']} on {node}",)
    )


def _lease(pod: Manifest) -> float:
    for container in pod["spec"]["containers"]:
        for variable in container.get("env") or ():
            if variable["name"] == "LONGBOAT_DRIVER_LEASE":
                return float(variable["value"])
    return names.DRIVER_LEASE
