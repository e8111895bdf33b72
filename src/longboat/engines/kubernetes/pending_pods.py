"""Why pods of a run are pending: the driver's, a rank's, and what is free on the nodes."""

from __future__ import annotations

from longboat.engines.kubernetes import lost_driver, node_capacity
from longboat.runtime.causes import Cause
from longboat.runtime.kube_client import missing_rights, names
from longboat.runtime.kube_client.api import EVERYWHERE, Api, ApiError, Manifest
from longboat.runtime.pod import pod_status, pod_templates
from longboat.runtime.seat import Seat

LIVING = "status.phase!=Succeeded,status.phase!=Failed"


def driver(api: Api, run: str) -> Cause | None:
    """Why the driver of a run does not run; None if it does, or if no reason is known."""
    pod = api.find("Pod", names.driver_pod(run))
    seat = Seat("", "driver", 0)
    if pod is None:
        return _not_created(api, run)
    if (gone := lost_driver.cause(pod, api.now())) is not None:
        return gone
    if pod_status.over(pod):
        return pod_status.ended(pod, seat)
    return _pending(api, pod, seat)


def rank(api: Api, run: str) -> Cause | None:
    """Why a rank's pod does not run; None if all run, or if no reason is known."""
    try:
        for pod in api.list("Pod", names.selector(run, "rank"), fields="status.phase=Pending"):
            cause = _pending(api, pod, pod_templates.seat_of(pod["metadata"].get("labels")))
            if cause is not None:
                return cause
    except ApiError:
        return None  # without permission, the journal has to do
    return None


def room(api: Api, cpu: float, memory: float, gpu: float) -> list[str]:
    """Why a pod with these requests fits on no node: the arithmetic, then each node; empty if it would fit."""
    try:
        nodes = free(api)
    except ApiError as error:
        lacks = missing_rights.lacking(error.message)
        why = f"you may not {lacks.verb} {lacks.resource} of the cluster" if lacks else error.message
        return [f"what is free on each node cannot be seen from here: {why}; the scheduler's words have to do"]
    return node_capacity.arithmetic(nodes, cpu, memory, gpu)


def free(api: Api) -> list[node_capacity.NodeCapacity]:
    """What is free on each node: needs the right to list nodes, and pods in all namespaces."""
    return node_capacity.free(api.list("Node"), api.list("Pod", namespace=EVERYWHERE, fields=LIVING))


def _pending(api: Api, pod: Manifest, seat: Seat) -> Cause | None:
    cause = pod_status.waiting(pod, seat)
    if cause is not None and not cause.evidence:
        events = api.list("Event", fields=f"involvedObject.name={pod['metadata']['name']}")
        cause = pod_status.with_events(cause, events)
    return cause


def _not_created(api: Api, run: str) -> Cause | None:
    """Why the driver has no pod: the StatefulSet's warnings."""
    events = api.list("Event", fields=f"involvedObject.name={names.driver(run)}")
    warnings = [str(event.get("message")) for event in events if event.get("type") == "Warning"]
    if not warnings:
        return None
    return pod_status.refused(ApiError(422, "FailedCreate", warnings[-1]), Seat("", "driver", 0))
