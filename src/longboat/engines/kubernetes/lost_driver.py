"""A driver whose node does not answer: when its pod may be deleted by force, so that another one is made.

Its pod stays, told to go, and no StatefulSet makes a second one beside it. Only force removes it,
and force is safe once the driver must have left by itself: its lease (`runtime.pod.leadership`) and a margin
after it was told to go. By the API server's clock; this machine's may be wrong.
"""

from __future__ import annotations

import time

from longboat.engines.kubernetes import kube_config
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import Manifest

UNHEEDED = 30.0
"""Seconds beyond its grace period after which a pod that was told to go counts as unheard."""


def over(pod: Manifest) -> float:
    """When a driver that was told to go drives no more, even if its node never heard of it; 0: it was not told."""
    told = pod["metadata"].get("deletionTimestamp")
    return kube_config.moment(told) + _lease(pod) + names.DRIVER_MARGIN if told else 0.0


def cause(pod: Manifest, now: float) -> Cause | None:
    """Why a driver's pod does not go although it was told to; None while it may just be going."""
    told = pod["metadata"].get("deletionTimestamp")
    if not told or now < kube_config.moment(told) + UNHEEDED:
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
