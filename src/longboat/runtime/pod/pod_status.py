"""What the state of a pod means: whether and why it ended, what it waits for, why it was refused. Pure.

Only this module maps Kubernetes' messages to causes; the messages are the evidence.
"""

from __future__ import annotations

import re
from typing import Any, List, Optional, Sequence, Tuple

from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.errors import PACKAGES_MISSING, PYTHON_TOO_OLD
from longboat.runtime.kube_client import missing_rights, quota
from longboat.runtime.kube_client.api import ApiError, Manifest
from longboat.runtime.light_dataclasses import replace
from longboat.runtime.seat import Seat

NO_PULL = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"})
NO_CONTAINER = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"})
EVICTED = frozenset({"Evicted", "Preempted", "Preempting", "NodeShutdown", "Terminated", "Shutdown"})
NODE_GONE = frozenset({"NodeLost", "NodeAffinity", "UnexpectedAdmissionError"})
VOLUME_EVENTS = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume", "ProvisioningFailed"})
_OWN_LIMIT = re.compile(r"exceeds the (total )?limit|exceeded its local ephemeral storage limit")
"""Eviction messages for what the pod did itself."""
_NO_PYTHON = re.compile(r"exec: \"?python3?\"?.*(not found|no such file)|python3.*no such file", re.IGNORECASE)
ERROR = "error: "
"""Start of the line in which Longboat's programs say what is wrong."""

_MISSING_PACKAGES_HINT = (
    "list the packages in `requirements:`, or use an image that has them; `longboat build` makes one"
)


def over(pod: Manifest) -> bool:
    """Whether all containers have ended, and none will start."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def placed(pod: Manifest) -> bool:
    return bool(pod.get("spec", {}).get("nodeName"))


def not_started(pod: Manifest) -> bool:
    """Whether its node has not begun to start it."""
    status = pod.get("status", {})
    return placed(pod) and status.get("phase") == "Pending" and not status.get("startTime")


def evicted_for_disk(notices: Sequence[Manifest], seat: Seat) -> Optional[Cause]:
    """The cause if a pod was evicted because it exceeded its own disk limit, which another node would not fix; from
    its events or its status. None if it was not."""
    for notice in notices:
        message = str(notice.get("message") or "").strip()
        if notice.get("reason") == "Evicted" and _OWN_LIMIT.search(message):
            return _cause(
                CauseKind.DISK_FULL, f"its pod was evicted because it exceeded its disk limit: {message}", seat
            )
    return None


def ended(pod: Manifest, seat: Seat) -> Cause:
    """Why a pod ended whose agent did not say goodbye."""
    status = pod.get("status", {})
    if (disk_full := evicted_for_disk([status], seat)) is not None:
        return disk_full
    reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    node = pod.get("spec", {}).get("nodeName") or "its node"
    target = next((c for c in status.get("conditions") or () if c.get("type") == "DisruptionTarget"), None)
    done = _terminated(status)
    if reason in EVICTED or target is not None and target.get("status") == "True":
        detail = message or str((target or {}).get("message") or "")
        why = f"its pod was evicted from {node}" + (f": {detail}" if detail else "")
        return _cause(CauseKind.PREEMPTED, why, seat, pod)
    if reason in NODE_GONE:
        return _cause(CauseKind.NODE_LOST, f"{node} dropped the pod: {message or reason}", seat, pod)
    if done is None:
        return _cause(CauseKind.AGENT_LOST, message or "its pod ended without a container status", seat, pod)
    return _terminated_for(done, seat, pod)


def _terminated_for(done: Manifest, seat: Seat, pod: Manifest) -> Cause:
    """Why a container ended, according to its node."""
    code, why = int(done.get("exitCode", -1)), str(done.get("reason") or "")
    text = str(done.get("message") or "").strip()
    if why == "OOMKilled":
        text = f"the kernel killed its container because memory ran out{_limit_text(pod)}"
        return _cause(CauseKind.OUT_OF_MEMORY, text, seat, pod)
    if _NO_PYTHON.search(text):
        return _no_python(pod, seat, text)
    if code == PYTHON_TOO_OLD:
        image = pod["spec"]["containers"][0].get("image")
        return _cause(CauseKind.NO_PYTHON, f"the Python of the image {image} is too old", seat, pod, [text])
    if why in ("StartError", "ContainerCannotRun"):
        return _cause(CauseKind.NOT_EXECUTABLE, f"its container did not start: {text}", seat, pod)
    last = text.splitlines()[-1] if text else ""
    if code == PACKAGES_MISSING:
        return _cause(CauseKind.MISSING_INPUT, _without_prefix(last), seat, pod)
    if pod["metadata"].get("deletionTimestamp"):
        return _cause(CauseKind.PREEMPTED, "its pod was deleted", seat, pod)
    message = f"the agent exited with code {code}" + (f": {last}" if last else "")
    return _cause(CauseKind.AGENT_LOST, message, seat, pod, text.splitlines()[-8:])


def waiting(pod: Manifest, seat: Seat) -> Optional[Cause]:
    """What keeps a pod from running; None if nothing is known."""
    status = pod.get("status", {})
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            message = str(condition.get("message") or condition.get("reason")).partition(" preemption:")[0]
            if "persistentvolumeclaim" in message.lower():
                return _cause(CauseKind.VOLUME, f"a volume is not bound: {message}", seat, pod, [message])
            requested = ", ".join(f"{value} {name}" for name, value in _requested(pod).items())
            text = message + (f" (each {seat.role} requests {requested})" if requested else "")
            return _cause(CauseKind.UNSCHEDULABLE, text, seat, pod)
    for state in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        held = (state.get("state") or {}).get("waiting") or {}
        reason, message = str(held.get("reason") or ""), str(held.get("message") or "")
        if reason in NO_PULL:
            text = f"cannot pull image {state.get('image')}: {message or reason}"
            return _cause(CauseKind.IMAGE_PULL, text, seat, pod)
        if reason in NO_CONTAINER:
            if _NO_PYTHON.search(message):
                return _no_python(pod, seat, message)
            return _cause(CauseKind.NOT_EXECUTABLE, f"cannot create its container: {message or reason}", seat, pod)
        if reason == "CrashLoopBackOff":
            done = (state.get("lastState") or {}).get("terminated") or {}
            cause = _terminated_for(done, seat, pod)
            times = f"it exited {state.get('restartCount')} times and is being restarted"
            return replace(cause, evidence=(*cause.evidence, times))
        if reason == "ContainerCreating":
            return _cause(CauseKind.VOLUME, "cannot mount a volume", seat)
    return None


def container(pod: Manifest, name: str) -> Manifest:
    """The status of one container of a pod; empty if its node has not reported one."""
    states = pod.get("status", {}).get("containerStatuses") or ()
    status: Manifest = next((state for state in states if state.get("name") == name), {})
    return status


def failures(pod: Manifest, seat: Seat) -> Tuple[int, Optional[Cause]]:
    """How often the containers of a server's pod have crashed, and why the last one did."""
    status = pod.get("status", {})
    count, cause = 0, None
    for state in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        now, before = state.get("state") or {}, state.get("lastState") or {}
        done = now.get("terminated") or before.get("terminated")
        if done is None or not int(done.get("exitCode", 0)):
            continue
        count += int(state.get("restartCount", 0)) + bool(now.get("terminated"))
        cause = _server_failure(pod, seat, done)
    return count, cause


def _server_failure(pod: Manifest, seat: Seat, done: Manifest) -> Cause:
    code, text = int(done.get("exitCode", -1)), str(done.get("message") or "").strip()
    lines = [line for line in text.splitlines() if line.strip()]
    if done.get("reason") == "OOMKilled":
        text = f"the kernel killed the server because memory ran out{_limit_text(pod)}"
        return _cause(CauseKind.OUT_OF_MEMORY, text, seat, pod)
    if _NO_PYTHON.search(text):
        return _no_python(pod, seat, text)
    error = next((line for line in lines if line.startswith(ERROR)), "")
    if code in (PACKAGES_MISSING, PYTHON_TOO_OLD):
        image = pod["spec"]["containers"][0].get("image")
        message = f"the image {image} lacks what the server needs: {_without_prefix(error)}"
        cause = _cause(CauseKind.MISSING_INPUT, message, seat, pod)
        return replace(cause, exit_code=code, evidence=(*cause.evidence, _MISSING_PACKAGES_HINT))
    last = error or (lines[-1] if lines else "")
    message = f"the server exited with code {code}" + (f": {last}" if last else "")
    kind = (
        CauseKind.NOT_EXECUTABLE if done.get("reason") in ("StartError", "ContainerCannotRun") else CauseKind.USER_ERROR
    )
    return replace(_cause(kind, message, seat, pod, lines[-8:]), exit_code=code)


def replica_failure(deployment: Manifest) -> Optional[Cause]:
    """Why the cluster does not create the pods of a Deployment: a quota, a policy."""
    for condition in deployment.get("status", {}).get("conditions") or ():
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            error = ApiError(403, str(condition.get("reason")), str(condition.get("message")))
            return refused(error, Seat("", "server", -1))
    return None


def with_events(cause: Cause, events: Sequence[Manifest]) -> Optional[Cause]:
    """The cause with the events of a container that is being created. None: no event is about a volume."""
    messages = [str(e.get("message")) for e in events if e.get("reason") in VOLUME_EVENTS]
    if not messages:
        return None
    return replace(cause, message=f"cannot mount a volume: {messages[-1]}", evidence=tuple(messages[-3:]))


def refused(error: ApiError, seat: Seat) -> Cause:
    """Why the API server refused a pod, or another request of the driver."""
    if quota.exceeded(error):
        return Cause(CauseKind.QUOTA, error.message).at(seat)
    lacks = missing_rights.lacking(error.message) if error.status == 403 else None
    if lacks is not None:
        facts = (f"a Role with this rule grants it: {lacks.rule}", *lacks.commands)
        return Cause(CauseKind.FORBIDDEN, error.message, evidence=facts).at(seat)
    return Cause(CauseKind.REFUSED, error.message, evidence=(f"status {error.status} {error.reason}",)).at(seat)


def _without_prefix(line: str) -> str:
    return line[len(ERROR) :] if line.startswith(ERROR) else line


def _no_python(pod: Manifest, seat: Seat, message: str) -> Cause:
    image = pod["spec"]["containers"][0].get("image")
    return _cause(CauseKind.NO_PYTHON, f"the image {image} has no python3", seat, pod, [message])


def _terminated(status: Manifest) -> Optional[Manifest]:
    for state in status.get("containerStatuses") or ():
        done = (state.get("state") or {}).get("terminated")
        if done is not None:
            terminated: Manifest = done
            return terminated
    return None


def _limit_text(pod: Manifest) -> str:
    limit = str((pod["spec"]["containers"][0].get("resources") or {}).get("limits", {}).get("memory", ""))
    return f" (limit {limit})" if limit else ""


def _requested(pod: Manifest) -> Manifest:
    resources = pod["spec"]["containers"][0].get("resources") or {}
    amounts: Manifest = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return amounts


def _cause(
    kind: CauseKind, message: str, seat: Seat, pod: Optional[Manifest] = None, lines: Optional[List[Any]] = None
) -> Cause:
    facts: Tuple[str, ...] = ()
    if pod is not None:
        node = pod.get("spec", {}).get("nodeName")
        facts = (f"pod {pod['metadata']['name']}" + (f" on {node}" if node else ", not on a node yet"),)
    return Cause(kind, message, lines=tuple(lines or ()), evidence=facts).at(seat)
