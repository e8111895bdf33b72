"""What the state of a pod means: has it ended and why, what does it wait for, why was it refused. Pure.

Kubernetes' own words are the evidence; they are mapped to causes here and nowhere else.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, List, Optional, Sequence, Tuple

from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.kube_client import missing_rights
from longboat.runtime.kube_client.api import ApiError, Manifest

Seat = Tuple[str, str, int]

NO_PULL = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"})
NO_CONTAINER = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"})
TAKEN_AWAY = frozenset({"Evicted", "Preempted", "Preempting", "NodeShutdown", "Terminated", "Shutdown"})
NODE_GONE = frozenset({"NodeLost", "NodeAffinity", "UnexpectedAdmissionError"})
VOLUME_EVENTS = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume", "ProvisioningFailed"})
_OWN_LIMIT = re.compile(r"exceeds the (total )?limit|exceeded its local ephemeral storage limit")
"""How a node says that a pod was evicted for what it did itself."""
TOO_OLD = "Longboat needs Python"
"""How the zipapp says that the image's Python is too old for it (`shipping.MAIN`)."""
_NO_PYTHON = re.compile(r"exec: \"?python3?\"?.*(not found|no such file)|python3.*no such file", re.IGNORECASE)

_GET_THEM = "name the packages in `requirements:`, or take an image that has them; `longboat build` makes one"
_LACKS = re.compile(r"packages that are not installed|needs Python|^requirements: ")


def over(pod: Manifest) -> bool:
    """All its containers have ended, and none will start."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def placed(pod: Manifest) -> bool:
    return bool(pod.get("spec", {}).get("nodeName"))


def unheeded(pod: Manifest) -> bool:
    """It was given to a node that has not begun with it."""
    status = pod.get("status", {})
    return placed(pod) and status.get("phase") == "Pending" and not status.get("startTime")


def overfull(told: Sequence[Manifest], seat: Seat) -> Optional[Cause]:
    """From the events or the status of a pod: it was evicted because it filled its own limit of disk, and no other
    node would help. None: it was not."""
    for each in told:
        message = str(each.get("message") or "").strip()
        if each.get("reason") == "Evicted" and _OWN_LIMIT.search(message):
            return _cause(
                CauseKind.DISK_FULL, f"its pod was evicted for filling its own limit of disk: {message}", seat
            )
    return None


def ended(pod: Manifest, seat: Seat) -> Cause:
    """Why the pod of an agent that did not say goodbye is over."""
    status = pod.get("status", {})
    if (own := overfull([status], seat)) is not None:
        return own
    reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    node = pod.get("spec", {}).get("nodeName") or "its node"
    target = next((c for c in status.get("conditions") or () if c.get("type") == "DisruptionTarget"), None)
    done = _terminated(status)
    if reason in TAKEN_AWAY or target is not None and target.get("status") == "True":
        told = message or str((target or {}).get("message") or "")
        why = f"its pod was evicted from {node}" + (f": {told}" if told else "")
        return _cause(CauseKind.PREEMPTED, why, seat, pod)
    if reason in NODE_GONE:
        return _cause(CauseKind.NODE_LOST, f"{node} gave the pod up: {message or reason}", seat, pod)
    if done is None:
        return _cause(CauseKind.AGENT_LOST, message or "its pod ended and no container says how", seat, pod)
    return _terminated_for(done, seat, pod)


def _terminated_for(done: Manifest, seat: Seat, pod: Manifest) -> Cause:
    """Why a container has ended, from what its node says of it."""
    code, why = int(done.get("exitCode", -1)), str(done.get("reason") or "")
    text = str(done.get("message") or "").strip()
    if why == "OOMKilled":
        limit = _limit(pod)
        asked = f", whose memory limit is {limit}" if limit else ""
        return _cause(CauseKind.OUT_OF_MEMORY, f"the kernel ended its container for memory{asked}", seat, pod)
    if _NO_PYTHON.search(text):
        return _no_python(pod, seat, text)
    if TOO_OLD in text:
        image = pod["spec"]["containers"][0].get("image")
        return _cause(CauseKind.NO_PYTHON, f"the image {image} has too old a Python", seat, pod, [text])
    if why in ("StartError", "ContainerCannotRun"):
        return _cause(CauseKind.NOT_EXECUTABLE, f"its container did not start: {text}", seat, pod)
    last = text.splitlines()[-1] if text else ""
    if last.startswith("requirements: "):
        return _cause(CauseKind.MISSING_INPUT, last, seat, pod)
    if pod["metadata"].get("deletionTimestamp"):
        return _cause(CauseKind.PREEMPTED, "its pod was deleted", seat, pod)
    said = f"the agent ended with code {code}" + (f": {last}" if last else "")
    return _cause(CauseKind.AGENT_LOST, said, seat, pod, text.splitlines()[-8:])


def waiting(pod: Manifest, seat: Seat) -> Optional[Cause]:
    """What keeps a pod from running; None when nothing is known to."""
    status = pod.get("status", {})
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            message = str(condition.get("message") or condition.get("reason")).partition(" preemption:")[0]
            if "persistentvolumeclaim" in message.lower():
                return _cause(CauseKind.VOLUME, message, seat, pod, [message])
            asked = ", ".join(f"{value} {name}" for name, value in _asked(pod).items())
            text = message + (f" (each {seat[1]} asks for {asked})" if asked else "")
            return _cause(CauseKind.UNSCHEDULABLE, text, seat, pod)
    for state in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        held = (state.get("state") or {}).get("waiting") or {}
        reason, message = str(held.get("reason") or ""), str(held.get("message") or "")
        if reason in NO_PULL:
            text = f"the image {state.get('image')} cannot be pulled: {message or reason}"
            return _cause(CauseKind.IMAGE_PULL, text, seat, pod)
        if reason in NO_CONTAINER:
            if _NO_PYTHON.search(message):
                return _no_python(pod, seat, message)
            return _cause(CauseKind.NOT_EXECUTABLE, f"its container cannot be made: {message or reason}", seat, pod)
        if reason == "CrashLoopBackOff":
            done = (state.get("lastState") or {}).get("terminated") or {}
            found = _terminated_for(done, seat, pod)
            times = f"it ended {state.get('restartCount')} times and is started again"
            return dataclasses.replace(found, evidence=(*found.evidence, times))
        if reason == "ContainerCreating":
            return _cause(CauseKind.VOLUME, "a volume of it cannot be mounted", seat)
    return None


def container(pod: Manifest, name: str) -> Manifest:
    """How one container of a pod stands; empty while its node has not said."""
    states = pod.get("status", {}).get("containerStatuses") or ()
    found: Manifest = next((state for state in states if state.get("name") == name), {})
    return found


def fallen(pod: Manifest, seat: Seat) -> Tuple[int, Optional[Cause]]:
    """How often the containers of a server's pod have ended by themselves, and why the last one did."""
    status = pod.get("status", {})
    falls, cause = 0, None
    for state in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        now, before = state.get("state") or {}, state.get("lastState") or {}
        done = now.get("terminated") or before.get("terminated")
        if done is None or not int(done.get("exitCode", 0)):
            continue
        falls += int(state.get("restartCount", 0)) + bool(now.get("terminated"))
        cause = _fall(pod, seat, done)
    return falls, cause


def _fall(pod: Manifest, seat: Seat, done: Manifest) -> Cause:
    code, text = int(done.get("exitCode", -1)), str(done.get("message") or "").strip()
    lines = [line for line in text.splitlines() if line.strip()]
    if done.get("reason") == "OOMKilled":
        limit = _limit(pod)
        asked = f", whose memory limit is {limit}" if limit else ""
        return _cause(CauseKind.OUT_OF_MEMORY, f"the kernel ended the server for memory{asked}", seat, pod)
    if _NO_PYTHON.search(text):
        return _no_python(pod, seat, text)
    wrong = next((line for line in lines if line.startswith(("error: ", "requirements: "))), "")
    if _LACKS.search(wrong):
        image = pod["spec"]["containers"][0].get("image")
        lacking = wrong.rpartition("not installed here: ")[2] if "not installed here: " in wrong else wrong
        message = f"the image {image} lacks what the server needs: {lacking}"
        cause = _cause(CauseKind.MISSING_INPUT, message, seat, pod)
        return dataclasses.replace(cause, exit_code=code, evidence=(*cause.evidence, _GET_THEM))
    last = wrong or (lines[-1] if lines else "")
    said = f"the server ended with code {code}" + (f": {last}" if last else "")
    kind = (
        CauseKind.NOT_EXECUTABLE if done.get("reason") in ("StartError", "ContainerCannotRun") else CauseKind.USER_ERROR
    )
    return dataclasses.replace(_cause(kind, said, seat, pod, lines[-8:]), exit_code=code)


def unmade(deployment: Manifest) -> Optional[Cause]:
    """Why the cluster will not make the pods of a Deployment: a quota, a policy."""
    for condition in deployment.get("status", {}).get("conditions") or ():
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            error = ApiError(403, str(condition.get("reason")), str(condition.get("message")))
            return refused(error, ("", "server", -1))
    return None


def with_events(cause: Cause, events: Sequence[Manifest]) -> Optional[Cause]:
    """A container that is being created says nothing; its events may. None: no event speaks of a volume."""
    told = [str(e.get("message")) for e in events if e.get("reason") in VOLUME_EVENTS]
    if not told:
        return None
    return dataclasses.replace(cause, message=f"a volume cannot be mounted: {told[-1]}", evidence=tuple(told[-3:]))


def refused(error: ApiError, seat: Seat) -> Cause:
    """Why the API server would not take a pod, or let the driver do what it must."""
    role, rank = seat[1], seat[2]
    if "exceeded quota" in error.message:
        return Cause(CauseKind.QUOTA, error.message, role=role, rank=rank)
    lacks = missing_rights.lacking(error.message) if error.status == 403 else None
    if lacks is not None:
        facts = (f"a Role with this rule would do: {lacks.rule}", *lacks.commands)
        return Cause(CauseKind.FORBIDDEN, error.message, role=role, rank=rank, evidence=facts)
    return Cause(
        CauseKind.REFUSED, error.message, role=role, rank=rank, evidence=(f"status {error.status} {error.reason}",)
    )


def _no_python(pod: Manifest, seat: Seat, message: str) -> Cause:
    image = pod["spec"]["containers"][0].get("image")
    return _cause(CauseKind.NO_PYTHON, f"the image {image} has no python3", seat, pod, [message])


def _terminated(status: Manifest) -> Optional[Manifest]:
    for state in status.get("containerStatuses") or ():
        done = (state.get("state") or {}).get("terminated")
        if done is not None:
            found: Manifest = done
            return found
    return None


def _limit(pod: Manifest) -> str:
    return str((pod["spec"]["containers"][0].get("resources") or {}).get("limits", {}).get("memory", ""))


def _asked(pod: Manifest) -> Manifest:
    resources = pod["spec"]["containers"][0].get("resources") or {}
    found: Manifest = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return found


def _cause(
    kind: CauseKind, message: str, seat: Seat, pod: Optional[Manifest] = None, lines: Optional[List[Any]] = None
) -> Cause:
    facts: Tuple[str, ...] = ()
    if pod is not None:
        node = pod.get("spec", {}).get("nodeName")
        facts = (f"pod {pod['metadata']['name']}" + (f" on {node}" if node else ", on no node yet"),)
    return Cause(kind, message, role=seat[1], rank=seat[2], lines=tuple(lines or ()), evidence=facts)
