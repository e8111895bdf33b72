"""Checks that the namespace admits the pods of a job, before anything is submitted.

The API server decides, in a dry run: only it knows what Pod Security or webhooks have against a pod, and a namespace's
labels may be hidden. Only jobs with something that is often refused are checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from longboat.manifests import rank_pods, run_objects
from longboat.runtime.errors import LongboatError
from longboat.runtime.kube_client.api import ApiError, Manifest
from longboat.runtime.light_dataclasses import replace
from longboat.runtime.plan import Plan

if TYPE_CHECKING:
    from longboat.engines.kubernetes.cluster import Cluster

INLINE = ("nfs", "hostPath")
"""Kinds of storage that Pod Security refuses in a pod: nfs at restricted, hostPath at baseline too."""

NOT_ABOUT_PODS = ("cannot create resource", "exceeded quota")
"""Errors that say nothing about the pod: no permission to ask, or a quota that may have room later."""


def check(cluster: Cluster, plan: Plan) -> None:
    """Raises an error with the server's reason if a pod of the job would be refused."""
    account = plan.security.service_account
    if account and not plan.security.annotations and _absent(cluster, account):
        raise LongboatError(
            f"there is no service account {account} in the namespace {cluster.namespace}",
            f"kubectl create serviceaccount {account} -n {cluster.namespace}; with `annotations:` it is made",
        )
    asks = plan.security.user == 0 or any(mount.kind in INLINE for mount in plan.storage)
    if asks or any(stage.pod != "{}" for stage in plan.stages):
        reason = refused(cluster, plan)
        if reason:
            raise LongboatError(f"the namespace {cluster.namespace} does not allow this job: {reason}", hint(plan))


def _absent(cluster: Cluster, account: str) -> bool:
    try:
        return cluster.api.find("ServiceAccount", account) is None
    except ApiError as error:
        if error.status != 403:
            raise
        return False


def refused(cluster: Cluster, plan: Plan) -> str:
    """Why the pods of a job would be refused; empty if they would not, or if there is no permission to ask."""
    for pod in _pods(plan):
        try:
            cluster.api.create(pod, dry_run=True)
        except ApiError as error:
            if error.status == 403 and any(word in error.message for word in NOT_ABOUT_PODS):
                return ""
            if error.status in (400, 403, 422):
                return error.message
            raise
    return ""


def _pods(plan: Plan) -> list[Manifest]:
    """One pod of each kind in the job; without its service account, which may not exist yet."""
    inside = run_objects.for_pods(replace(plan, security=replace(plan.security, service_account="", annotations=())))
    pods: list[Manifest] = []
    for stage in inside.stages:
        for role in rank_pods.roles_of(stage) if stage.kind == "gang" else ():
            pod = rank_pods.pod_of(inside, "longboat-check", stage, role, 0)
            pod["metadata"]["name"] = f"longboat-check-{stage.name}-{role.name}"
            if not any(pod["spec"] == other["spec"] for other in pods):
                pods.append(pod)
    return pods


def hint(plan: Plan) -> str:
    """How to change the job so that it is admitted."""
    inline = [mount for mount in plan.storage if mount.kind in INLINE]
    hints = [
        f"storage {mount.name}: let an admin make a volume of this {mount.kind} and a claim on it, and name that: "
        f"`{mount.name}: {{pvc: NAME}}`"
        for mount in inline
    ]
    if plan.security.user == 0:
        hints.append("`security: {user: 1000}`, or any other user than 0")
    hints.append("another namespace may allow it: an admin says so with the label pod-security.kubernetes.io/enforce")
    return "\n".join(hints)
