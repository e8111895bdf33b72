"""Volumes that a job creates (`make:`), as Kubernetes objects. Pure.

They are named after job and mount, not after the run, so that the next run of the job reuses them. No root owns them,
so that removing a run keeps them. Their labels name the run that created them.
"""

from __future__ import annotations

from longboat.manifests import pod_identity
from longboat.manifests.pod_base import quantity
from longboat.runtime.errors import LongboatError
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import Manifest
from longboat.runtime.plan import Make, Mount, Plan

PART = "storage"
NFS_IMAGE = "registry.k8s.io/volume-nfs:0.8"
"""It serves /exports as the root of its exports."""
NFS_PORTS = {"nfs": 2049, "mountd": 20048, "rpcbind": 111}


def made(plan: Plan) -> list[tuple[Mount, Make]]:
    return [(mount, mount.make) for mount in plan.storage if mount.make is not None]


def claim(plan: Plan, run: str, mount: Mount, make: Make) -> Manifest:
    """The claim that ranks mount, for a volume of a storage class."""
    return _claim(plan, run, mount.source, make, make.mode or "ReadWriteMany")


def disk(plan: Plan, run: str, mount: Mount, make: Make) -> Manifest | None:
    """The claim for the NFS server's files; None if the job names an existing one."""
    return None if make.disk else _claim(plan, run, f"{mount.source}-disk", make, "ReadWriteOnce")


def server(plan: Plan, run: str, mount: Mount, make: Make) -> list[Manifest]:
    """The NFS server: a StatefulSet, which never runs two on one disk, and the Service with its address.

    The kernel's NFS server needs a privileged pod, which namespaces with Pod Security do not allow."""
    name, selector = nfs_name(mount), {"longboat.dev/storage": mount.source}
    labels = {**names.labels(run, plan.name, PART), **selector}
    container = {
        "name": "nfs",
        "image": make.image or NFS_IMAGE,
        "securityContext": {"privileged": True},
        "ports": [{"name": port, "containerPort": number} for port, number in NFS_PORTS.items()],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
        "readinessProbe": {"tcpSocket": {"port": "nfs"}, "periodSeconds": 2},
        "volumeMounts": [{"name": "disk", "mountPath": "/exports"}],
    }
    claim = {"persistentVolumeClaim": {"claimName": make.disk or f"{mount.source}-disk"}}
    spec = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # Ranks are in the group that owns the disk; the export keeps the disk's owners.
        "securityContext": {"fsGroup": pod_identity.fs_group(plan.security), "fsGroupChangePolicy": "OnRootMismatch"},
        "containers": [container],
        "volumes": [{"name": "disk", **claim}],
    }
    template = {"metadata": {"labels": labels, "annotations": {names.SAFE_TO_EVICT: "false"}}, "spec": spec}
    service = _meta("v1", "Service", name, plan, run)
    service["spec"] = {
        "selector": selector,
        "ports": [{"name": port, "port": number} for port, number in NFS_PORTS.items()],
    }
    workload = _meta("apps/v1", "StatefulSet", name, plan, run)
    workload["spec"] = {"replicas": 1, "serviceName": name, "selector": {"matchLabels": selector}, "template": template}
    return [service, workload]


def nfs_name(mount: Mount) -> str:
    return f"{mount.source}-nfs"


def volume_name(mount: Mount, namespace: str) -> str:
    """PersistentVolumes are cluster-wide, so their names include the namespace."""
    return f"{namespace}-{mount.source}"


def volume(plan: Plan, run: str, mount: Mount, make: Make, namespace: str, address: str) -> list[Manifest]:
    """The volume for the server's export, and the claim bound to it."""
    name = volume_name(mount, namespace)
    size = quantity(make.size or 1 << 30)
    pv = _meta("v1", "PersistentVolume", name, plan, run)
    pv["spec"] = {
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteMany"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "",
        "mountOptions": ["nfsvers=4.1", "hard"],
        "nfs": {"server": address, "path": "/"},
        "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": mount.source},
    }
    bound = _claim(plan, run, mount.source, make, "ReadWriteMany")
    bound["spec"] |= {"storageClassName": "", "volumeName": name, "resources": {"requests": {"storage": size}}}
    return [pv, bound]


def objects(plan: Plan, run: str, namespace: str) -> list[Manifest]:
    """All objects, for an exported file: the NFS server is addressed by name, not by IP."""
    created: list[Manifest] = []
    for mount, make in made(plan):
        if not make.nfs:
            created.append(claim(plan, run, mount, make))
            continue
        if not namespace:
            raise LongboatError(
                f"storage {mount.name}: the volume of an NFS server needs a namespace", "add --namespace NAME"
            )
        disk_claim = disk(plan, run, mount, make)
        address = f"{nfs_name(mount)}.{namespace}.svc.cluster.local"
        created += [] if disk_claim is None else [disk_claim]
        created += [*server(plan, run, mount, make), *volume(plan, run, mount, make, namespace, address)]
    return created


def _claim(plan: Plan, run: str, name: str, make: Make, mode: str) -> Manifest:
    spec: Manifest = {"accessModes": [mode], "resources": {"requests": {"storage": quantity(make.size)}}}
    if make.storage_class:
        spec["storageClassName"] = make.storage_class
    return {**_meta("v1", "PersistentVolumeClaim", name, plan, run), "spec": spec}


def _meta(version: str, kind: str, name: str, plan: Plan, run: str) -> Manifest:
    meta = {"name": name, "labels": names.labels(run, plan.name, PART)}
    return {"apiVersion": version, "kind": kind, "metadata": meta}
