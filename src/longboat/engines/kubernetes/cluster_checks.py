"""Checks what a job needs from a cluster before it is submitted, for `doctor`.

Most checks ask the API server. Whether an image can be pulled, and whether the job's user can write to a volume, only a
pod can tell: a temporary pod tries it.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from longboat.engines.kubernetes import admission
from longboat.manifests import pod_identity, rank_pods, run_objects
from longboat.runtime.buckets.bucket_mounts import SCHEMES
from longboat.runtime.errors import LongboatError
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import ApiError, Manifest
from longboat.runtime.light_dataclasses import dataclass
from longboat.runtime.plan import Make, Mount, Plan
from longboat.runtime.pod import pod_status, pod_templates
from longboat.runtime.seat import Seat

if TYPE_CHECKING:
    from longboat.engines.kubernetes.cluster import Cluster

PATIENCE = 120.0
"""Seconds to wait for a probe: pulling an image and failing to mount both take time."""

PROBE = """
import json, os, sys
report = {"python": sys.version.split()[0], "mounts": {}}
for name, read_only in json.loads(sys.argv[1]).items():
    place = os.path.join(sys.argv[2], name)
    try:
        if read_only:
            os.listdir(place)
        else:
            file = os.path.join(place, ".longboat-probe-" + str(os.getpid()))
            open(file, "w").close()
            os.unlink(file)
        report["mounts"][name] = ""
    except OSError as error:
        held = os.stat(place)
        report["mounts"][name] = "%s (it belongs to %d:%d, mode %o)" % (
            error.strerror, held.st_uid, held.st_gid, held.st_mode & 0o7777)
with open("/dev/termination-log", "w") as file:
    json.dump(report, file)
"""
"""Runs on any Python 3.9: which mounts can be read, or written to."""


@dataclass(frozen=True)
class ClusterCheck:
    about: str
    met: bool | None
    """None: unknown, or a warning."""
    detail: str
    fix: str = ""


def of_job(cluster: Cluster, plan: Plan, probe: bool) -> list[ClusterCheck]:
    try:
        run_objects.check(plan)
        reason = admission.refused(cluster, plan)
    except LongboatError as error:
        return [ClusterCheck("job", False, error.message, error.hint)]
    checks = [
        ClusterCheck("pods", False, reason, admission.hint(plan))
        if reason
        else ClusterCheck("pods", True, f"the namespace {cluster.namespace} allows them")
    ]
    claims = {m.name: _claim(cluster, m) for m in plan.storage if m.kind == "pvc" and m.make is None}
    checks += [need for need, _ in claims.values()]
    checks += [_made(cluster, mount, mount.make) for mount in plan.storage if mount.make is not None]
    checks += [_bucket(plan, mount) for mount in plan.storage if mount.kind in SCHEMES]
    checks += [*_secrets(cluster, plan), *_account(cluster, plan)]
    if probe and not reason:
        mounts = [
            mount
            for mount in plan.storage
            if mount.kind in ("nfs", "hostPath")
            or mount.kind == "pvc"
            and (claims[mount.name][1] if mount.make is None else _bound(cluster, mount.source))
        ]
        checks += _probed(cluster, plan, mounts)
    return checks


def _claim(cluster: Cluster, mount: Mount) -> tuple[ClusterCheck, bool]:
    """Checks a claim that must exist; also whether a pod could mount it now."""
    about = f"storage {mount.name}"
    there = cluster.api.find("PersistentVolumeClaim", mount.source)
    if there is None:
        near = ", ".join(claim["metadata"]["name"] for claim in cluster.api.list("PersistentVolumeClaim"))
        fix = f"make it, or let Longboat: `{mount.name}: {{make: 10Gi}}`"
        return ClusterCheck(about, False, f"there is no claim {mount.source}; there are: {near or 'none'}", fix), False
    phase, modes = there["status"].get("phase"), ", ".join(there["spec"].get("accessModes") or ())
    if phase == "Bound":
        return ClusterCheck(about, True, f"the claim {mount.source} is bound, {modes}"), True
    if phase == "Lost":
        return ClusterCheck(about, False, f"the claim {mount.source} has lost its volume", "make another"), False
    events = cluster.api.list("Event", fields=f"involvedObject.name={mount.source}")
    messages = [str(event.get("message")) for event in events]
    detail = f"the claim {mount.source} is not bound yet" + (f": {messages[-1]}" if messages else "")
    return ClusterCheck(about, None, detail, "it may be bound when a pod first asks for it"), False


def _bound(cluster: Cluster, claim: str) -> bool:
    there = cluster.api.find("PersistentVolumeClaim", claim)
    return there is not None and there["status"].get("phase") == "Bound"


def _made(cluster: Cluster, mount: Mount, make: Make) -> ClusterCheck:
    about = f"storage {mount.name}"
    if cluster.api.find("PersistentVolumeClaim", mount.source) is not None:
        return ClusterCheck(about, True, f"the claim {mount.source} is there and will be used again")
    if make.nfs and not cluster.may("create", "persistentvolumes", everywhere=True):
        fix = "an admin gives it: create and delete persistentvolumes, a right of the cluster; or leave out `nfs`"
        detail = "you may not create persistentvolumes, which an NFS server needs"
        if make.size:
            return ClusterCheck(about, None, f"{detail}; a claim will be made instead", fix)
        return ClusterCheck(about, False, detail, fix)
    if not cluster.may("create", "persistentvolumeclaims"):
        return ClusterCheck(about, False, "you may not create persistentvolumeclaims", "ask an admin for that right")
    if make.storage_class:
        try:
            if cluster.api.find("StorageClass", make.storage_class) is None:
                return ClusterCheck(
                    about, False, f"there is no storage class {make.storage_class}", "kubectl get storageclass"
                )
        except ApiError:
            pass
    what = f"the NFS server {mount.source}-nfs" if make.nfs else f"the claim {mount.source}"
    return ClusterCheck(about, True, f"{what} will be made")


def _bucket(plan: Plan, mount: Mount) -> ClusterCheck:
    account = plan.security.service_account
    who = f"the account {account}" if account else "`env:` and `secrets:`"
    return ClusterCheck(
        f"storage {mount.name}", None, f"{mount.source} is opened by the ranks, with the rights of {who}"
    )


def _secrets(cluster: Cluster, plan: Plan) -> Iterator[ClusterCheck]:
    wanted = [(f"secret {each.name}", each.ref, each.key) for each in plan.secrets if each.source == "cluster"]
    wanted += [("pull secret", name, "") for name in plan.pull_secrets]
    for about, name, key in wanted:
        try:
            there = cluster.api.find("Secret", name)
        except ApiError:
            yield ClusterCheck(about, None, f"you may not look at the Secret {name}")
            continue
        if there is None:
            yield ClusterCheck(about, False, f"there is no Secret {name}", f"kubectl create secret generic {name} ...")
        elif key and key not in (there.get("data") or {}):
            keys = ", ".join(there.get("data") or {}) or "none"
            yield ClusterCheck(about, False, f"the Secret {name} has no key {key}; it has: {keys}")
        else:
            yield ClusterCheck(about, True, f"the Secret {name} is there")


def _account(cluster: Cluster, plan: Plan) -> Iterator[ClusterCheck]:
    name = plan.security.service_account
    if not name:
        return
    there = cluster.api.find("ServiceAccount", name) is not None
    if there or plan.security.annotations:
        yield ClusterCheck("account", True, f"{name} is there" if there else f"{name} will be made for the run")
    else:
        fix = f"kubectl create serviceaccount {name}, or give its `annotations:` and it is made"
        yield ClusterCheck("account", False, f"there is no service account {name}", fix)


# The probe.


def _probed(cluster: Cluster, plan: Plan, mounts: list[Mount]) -> Iterator[ClusterCheck]:
    """Starts one pod for each image; the first also tries the mounts."""
    images = dict.fromkeys(role.image or plan.image for stage in plan.stages for role in stage.roles)
    for image in filter(None, images):
        answer = _try(cluster, plan, image, mounts)
        if isinstance(answer, str):
            yield ClusterCheck(f"image {image}", False, answer, "longboat doctor --no-probe leaves this out")
            continue
        yield ClusterCheck(f"image {image}", True, f"a pod has it and runs Python {answer['python']}")
        for mount in mounts:
            why, who = answer["mounts"].get(mount.name, ""), _who(plan)
            what = "read" if mount.read_only else "written to"
            about = f"storage {mount.name}"
            if why:
                fix = "choose `security: {user, group, fs_group}` that own it, or say `read_only: true`"
                yield ClusterCheck(about, False, f"{mount.source} cannot be {what} by {who}: {why}", fix)
            else:
                yield ClusterCheck(about, True, f"{mount.source} can be {what} by {who}")
        mounts = []


def _who(plan: Plan) -> str:
    held = plan.security
    return f"user {pod_identity.user(held)}, group {pod_identity.group(held)}, fs_group {pod_identity.fs_group(held)}"


def _try(cluster: Cluster, plan: Plan, image: str, mounts: list[Mount]) -> Manifest | str:
    """The probe's answer, or why there is none. Its pod is always deleted."""
    request = json.dumps({mount.name: mount.read_only for mount in mounts})
    pod = rank_pods.probe_of(plan, image, mounts, ["python3", "-c", PROBE, request, names.MOUNTS])
    name = pod["metadata"]["name"] = pod_templates.new_name("longboat", Seat(names.PROBE, "pod", 0))
    try:
        cluster.api.create(pod)
        return _waited(cluster, name)
    except ApiError as error:
        return error.message
    finally:
        with contextlib.suppress(ApiError):
            cluster.api.delete("Pod", name, grace=1)


def _waited(cluster: Cluster, name: str) -> Manifest | str:
    due, seat = time.monotonic() + PATIENCE, Seat("", names.PROBE, 0)
    while True:
        pod = cluster.api.get("Pod", name)
        if pod_status.over(pod):
            ended = (pod["status"].get("containerStatuses") or [{}])[0].get("state", {}).get("terminated") or {}
            if ended.get("exitCode") == 0 and ended.get("message"):
                answer: Manifest = json.loads(ended["message"])
                return answer
            return pod_status.ended(pod, seat).message
        cause = pod_status.waiting(pod, seat)
        pulls = cause is not None and cause.kind.name in ("IMAGE_PULL", "NO_PYTHON", "NOT_EXECUTABLE")
        if cause is not None and (pulls or time.monotonic() > due):
            if not cause.evidence:
                cause = (
                    pod_status.with_events(cause, cluster.api.list("Event", fields=f"involvedObject.name={name}"))
                    or cause
                )
            return cause.message
        if time.monotonic() > due:
            return f"the pod {name} did not run within {PATIENCE:g} s"
        time.sleep(0.3)
