"""The storage that a job asks a cluster to make, as Kubernetes objects. Pure.

It is data: it is named after job and mount, not after the run, so that the next run of the job finds
it again; it belongs to no root, so that removing a run leaves it. Its labels say which run made it.
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
"""Serves /exports, as the root of its exports."""
NFS_PORTS = {"nfs": 2049, "mountd": 20048, "rpcbind": 111}


def made(plan: Plan) -> list[tuple[Mount, Make]]:
    return [(mount, mount.make) for mount in plan.storage if mount.make is not None]


def claim(plan: Plan, run: str, mount: Mount, make: Make) -> Manifest:
    """The claim that ranks mount, where a storage class makes what is behind it."""
    return _claim(plan, run, mount.source, make, make.mode or "ReadWriteMany")


def disk(plan: Plan, run: str, mount: Mount, make: Make) -> Manifest | None:
    """The claim that the NFS server keeps the files on; None where the job names one that is there."""
    return None if make.disk else _claim(plan, run, f"{mount.source}-disk", make, "ReadWriteOnce")


def server(plan: Plan, run: str, mount: Mount, make: Make) -> list[Manifest]:
    """The NFS server: a StatefulSet, which never has two on one disk, and the Service that is its address. The kernel's
    NFS server wants a privileged pod, which no namespace with Pod Security allows."""
    name, own = nfs_name(mount), {"longboat.dev/storage": mount.source}
    labels = {**names.labels(run, plan.name, PART), **own}
    container = {
        "name": "nfs",
        "image": make.image or NFS_IMAGE,
        "securityContext": {"privileged": True},
        "ports": [{"name": port, "containerPort": number} for port, number in NFS_PORTS.items()],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
        "readinessProbe": {"tcpSocket": {"port": "nfs"}, "periodSeconds": 2},
        "volumeMounts": [{"name": "disk", "mountPath": "/exports"}],
    }
    behind = {"persistentVolumeClaim": {"claimName": make.disk or f"{mount.source}-disk"}}
    spec = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # The disk is its group's, which the ranks are in: the export has the disk's own owners.
        "securityContext": {"fsGroup": pod_identity.fs_group(plan.security), "fsGroupChangePolicy": "OnRootMismatch"},
        "containers": [container],
        "volumes": [{"name": "disk", **behind}],
    }
    template = {"metadata": {"labels": labels, "annotations": {names.SAFE_TO_EVICT: "false"}}, "spec": spec}
    service = _meta("v1", "Service", name, plan, run)
    service["spec"] = {"selector": own, "ports": [{"name": port, "port": number} for port, number in NFS_PORTS.items()]}
    workload = _meta("apps/v1", "StatefulSet", name, plan, run)
    workload["spec"] = {"replicas": 1, "serviceName": name, "selector": {"matchLabels": own}, "template": template}
    return [service, workload]


def nfs_name(mount: Mount) -> str:
    return f"{mount.source}-nfs"


def volume_name(mount: Mount, namespace: str) -> str:
    """Volumes are the cluster's, so their names have the namespace in them."""
    return f"{namespace}-{mount.source}"


def volume(plan: Plan, run: str, mount: Mount, make: Make, namespace: str, address: str) -> list[Manifest]:
    """The volume that is the server's export, and the claim that is bound to it and to nothing else."""
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
    """All of it, for a file that is applied by hand: there the NFS server is known by its name, not its address."""
    found: list[Manifest] = []
    for mount, make in made(plan):
        if not make.nfs:
            found.append(claim(plan, run, mount, make))
            continue
        if not namespace:
            raise LongboatError(
                f"storage {mount.name}: the volume of an NFS server names its namespace", "add --namespace NAME"
            )
        behind = disk(plan, run, mount, make)
        address = f"{nfs_name(mount)}.{namespace}.svc.cluster.local"
        found += [] if behind is None else [behind]
        found += [*server(plan, run, mount, make), *volume(plan, run, mount, make, namespace, address)]
    return found


def _claim(plan: Plan, run: str, name: str, make: Make, mode: str) -> Manifest:
    spec: Manifest = {"accessModes": [mode], "resources": {"requests": {"storage": quantity(make.size)}}}
    if make.storage_class:
        spec["storageClassName"] = make.storage_class
    return {**_meta("v1", "PersistentVolumeClaim", name, plan, run), "spec": spec}


def _meta(version: str, kind: str, name: str, plan: Plan, run: str) -> Manifest:
    meta = {"name": name, "labels": names.labels(run, plan.name, PART)}
    return {"apiVersion": version, "kind": kind, "metadata": meta}
