"""What runs left in a namespace and what may cost money, each with the command that removes it.

Lists objects of the cluster, and buckets that the plans of its runs name.
"""

from __future__ import annotations

import time

from longboat.engines.interface import Leftover
from longboat.engines.kubernetes import kube_config, storage
from longboat.engines.kubernetes.cluster import Cluster, is_data
from longboat.runtime.buckets.bucket_mounts import SCHEMES
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import ApiError, Manifest
from longboat.runtime.plan import from_json

GONE = ("Succeeded", "Failed")


def of_runs(cluster: Cluster, run: str = "") -> list[Leftover]:
    """Leftovers of one run or of all runs; what costs money first."""
    try:
        roots = cluster.api.list("ConfigMap", _roots(run))
    except ApiError as error:
        raise cluster.refusal(error) from None
    existing = {str(root["metadata"]["name"]) for root in roots}
    now = time.time()
    listed = [_object(cluster, obj, existing, now) for obj in cluster.left(run)]
    for root in roots:
        listed += _elsewhere(root)
    return sorted(listed, key=lambda each: (each.run, not each.cost, each.kind, each.name))


def _roots(run: str) -> str:
    return f"app.kubernetes.io/managed-by=longboat,{names.PART_LABEL}=root" + (
        f",{names.RUN_LABEL}={run}" if run else ""
    )


def _object(cluster: Cluster, obj: Manifest, existing: set[str], now: float) -> Leftover:
    meta = obj["metadata"]
    run, kind, name = str((meta.get("labels") or {}).get(names.RUN_LABEL, "")), str(obj["kind"]), str(meta["name"])
    space = f"-n {cluster.namespace}"
    command = f"longboat rm {run} --on kubernetes {space}"
    if is_data(obj):
        command += " --data"
    elif run not in existing:
        command = f"kubectl delete {space} {kind.lower()}/{name}"
    return Leftover(run, kind, name, now - kube_config.moment(meta.get("creationTimestamp")), cost(obj), command)


def _elsewhere(root: Manifest) -> list[Leftover]:
    """What the run left outside of the cluster, from the plan in its root object."""
    run, text = str(root["metadata"]["name"]), str((root.get("data") or {}).get("plan.json", ""))
    listed = []
    for mount in from_json(text).storage if text else ():
        if mount.kind in SCHEMES and not mount.read_only:
            command = storage.REMOVERS[mount.kind].format(source=mount.source, space="")
            listed.append(Leftover(run, "Bucket", mount.source, None, "what is stored in it", command))
    return listed


def cost(obj: Manifest) -> str:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    if obj["kind"] == "Pod" and status.get("phase") not in GONE:
        requests: dict[str, str] = spec["containers"][0].get("resources", {}).get("requests") or {}
        return ", ".join(f"{value} {name}" for name, value in requests.items()) or "its node's time"
    if obj["kind"] == "PersistentVolumeClaim":
        return str(spec.get("resources", {}).get("requests", {}).get("storage", "a volume"))
    if obj["kind"] == "PersistentVolume":
        return str((spec.get("capacity") or {}).get("storage", "a volume"))
    if obj["kind"] == "Service" and spec.get("type") == "LoadBalancer":
        return "a load balancer"
    return ""
