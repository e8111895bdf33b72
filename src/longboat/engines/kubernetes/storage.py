"""Storage that a job asks a cluster to create (`make:`): found or created before a run, deleted on request.

It is data, so nothing here is deleted unless the user asks for it. `manifests.volumes` defines the objects.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from longboat.engines.interface import KeptData
from longboat.manifests import volumes
from longboat.runtime.errors import LongboatError
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import ApiError, Manifest
from longboat.runtime.light_dataclasses import replace
from longboat.runtime.plan import Make, Mount, Plan

if TYPE_CHECKING:
    from longboat.engines.kubernetes.cluster import Cluster

DELETED = 60.0
"""Seconds to wait until a claim is deleted."""
MANY, ONE = "ReadWriteMany", "ReadWriteOnce"

ONE_NODE = frozenset(
    {
        "cinder.csi.openstack.org",
        "disk.csi.azure.com",
        "docker.io/hostpath",
        "dobs.csi.digitalocean.com",
        "ebs.csi.aws.com",
        "kubernetes.io/aws-ebs",
        "kubernetes.io/azure-disk",
        "kubernetes.io/cinder",
        "kubernetes.io/gce-pd",
        "kubernetes.io/no-provisioner",
        "kubernetes.io/vsphere-volume",
        "pd.csi.storage.gke.io",
        "rancher.io/local-path",
        "rbd.csi.ceph.com",
        "rook-ceph.rbd.csi.ceph.com",
    }
)
"""Provisioners whose volumes only one node at a time can mount."""
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


def settled(cluster: Cluster, plan: Plan, say: Callable[[str], None]) -> Plan:
    """The plan, completed with what depends on the cluster: access modes, and whether NFS servers are permitted."""
    mounts = []
    for mount in plan.storage:
        make = mount.make
        if make is not None:
            make = _possible(cluster, mount, make, say)
            make = make if make.nfs or make.mode else _mode(cluster, mount, make, say)
        mounts.append(replace(mount, make=make))
    return replace(plan, storage=tuple(mounts))


def _possible(cluster: Cluster, mount: Mount, make: Make, say: Callable[[str], None]) -> Make:
    """Replaces an NFS server by a claim if the user may not create PersistentVolumes, which are cluster-wide."""
    if not make.nfs or cluster.may("create", "persistentvolumes", everywhere=True):
        return make
    if cluster.api.find("PersistentVolumeClaim", mount.source) is not None:
        return make
    if not make.size:
        raise LongboatError(
            f"storage {mount.name}: you may not create persistentvolumes, which an NFS server needs",
            "ask an admin for that right, or leave out `nfs` and give a `size`",
        )
    say(f"storage {mount.name}: you may not create persistentvolumes, so a claim is made instead of an NFS server")
    return replace(make, nfs=False, disk="")


def _mode(cluster: Cluster, mount: Mount, make: Make, say: Callable[[str], None]) -> Make:
    there = cluster.api.find("PersistentVolumeClaim", mount.source)
    if there is not None:
        return replace(make, mode=MANY if MANY in there["spec"].get("accessModes", ()) else ONE)
    name, provisioner = _class(cluster, make.storage_class)
    if provisioner not in ONE_NODE:
        return replace(make, mode=MANY)
    say(
        f"storage {mount.name}: the storage class {name} ({provisioner}) is for one node at a time, so all ranks go to "
        "one node. For more: a class for many nodes, `nfs: true`, or none: output and checkpoints travel by the driver"
    )
    return replace(make, mode=ONE)


def _class(cluster: Cluster, name: str) -> tuple[str, str]:
    """Name and provisioner of a storage class; empty if not permitted to see them."""
    try:
        classes = cluster.api.list("StorageClass")
    except ApiError:
        return name, ""
    for each in classes:
        default = (each["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true"
        if each["metadata"]["name"] == name or not name and default:
            return str(each["metadata"]["name"]), str(each.get("provisioner", ""))
    return name, ""


def make(cluster: Cluster, plan: Plan, run: str, say: Callable[[str], None]) -> list[Manifest]:
    """Creates missing storage; returns the created objects, so that a later error can delete them."""
    fresh: list[Manifest] = []
    try:
        for mount, wanted in volumes.made(plan):
            before = len(fresh)
            there = _staying(cluster, mount, "PersistentVolumeClaim", mount.source)
            if there is not None:
                _check(mount, there)
            elif wanted.nfs:
                _serve(cluster, plan, run, mount, wanted, fresh)
            else:
                _new(cluster, run, mount, volumes.claim(plan, run, mount, wanted), fresh)
            what = f"the NFS server {volumes.nfs_name(mount)}" if wanted.nfs else f"the claim {mount.source}"
            if len(fresh) > before:
                say(f"storage {mount.name}: {what} was made; `longboat rm` keeps it")
            else:
                say(f"storage {mount.name}: the claim {mount.source} is there and is used again")
    except BaseException:
        take_back(cluster, fresh)
        raise
    return fresh


def _new(cluster: Cluster, run: str, mount: Mount, obj: Manifest, fresh: list[Manifest]) -> Manifest:
    """Creates an object. One that another submission just created is used, and not deleted after an error."""
    while True:
        try:
            fresh.append(cluster.api.create(obj))
            return fresh[-1]
        except ApiError as error:
            if error.status != 409:
                raise
        there = _staying(cluster, mount, obj["kind"], obj["metadata"]["name"])
        if there is not None:
            _check(mount, there)
            if there["metadata"]["labels"].get(names.RUN_LABEL) == run:  # the response was lost
                fresh.append(there)
            return there


def _staying(cluster: Cluster, mount: Mount, kind: str, name: str) -> Manifest | None:
    """The object, or None; waits for one that is being deleted, because it still holds the name."""
    due = time.monotonic() + DELETED
    while True:
        there = cluster.api.find(kind, name)
        if there is None or not there["metadata"].get("deletionTimestamp"):
            return there
        if time.monotonic() > due:
            raise LongboatError(
                f"storage {mount.name}: {_noun(kind)} {name} is being deleted, and a pod still has it",
                f"kubectl describe {kind.lower()} {name} -n {cluster.namespace} says which",
            )
        time.sleep(0.5)


def _check(mount: Mount, there: Manifest) -> None:
    kind, name = there["kind"], there["metadata"]["name"]
    if (there["metadata"].get("labels") or {}).get("app.kubernetes.io/managed-by") != "longboat":
        use = f"to use it: `{mount.name}: {{pvc: {name}}}`; else " if name == mount.source else ""
        raise LongboatError(
            f"storage {mount.name}: there is {_noun(kind, 'a')} {name} that Longboat has not made",
            f"{use}give the mount another name",
        )
    if (there.get("status") or {}).get("phase") == "Released":
        raise LongboatError(
            f"storage {mount.name}: the volume {name} belongs to a claim that was deleted",
            f"kubectl delete persistentvolume/{name}    # the files stay on the server's disk",
        )


def _noun(kind: str, article: str = "the") -> str:
    return f"{article} {'claim' if kind == 'PersistentVolumeClaim' else kind}"


def _serve(cluster: Cluster, plan: Plan, run: str, mount: Mount, wanted: Make, fresh: list[Manifest]) -> None:
    """Creates the disk, the NFS server, then the volume, which needs the server's address."""
    behind = volumes.disk(plan, run, mount, wanted)
    service, workload = volumes.server(plan, run, mount, wanted)
    template = workload["spec"]["template"]
    probe = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": volumes.nfs_name(mount)}, "spec": template["spec"]}
    try:
        cluster.api.create(probe, dry_run=True)
    except ApiError as error:
        raise LongboatError(
            f"storage {mount.name}: the namespace {cluster.namespace} does not let an NFS server run: {error.message}",
            "leave out `nfs`, or let an admin run the server in another namespace and name its claim: `pvc: NAME`",
        ) from None
    if behind is not None:
        _new(cluster, run, mount, behind, fresh)
    address = str(_new(cluster, run, mount, service, fresh)["spec"]["clusterIP"])
    _new(cluster, run, mount, workload, fresh)
    for obj in volumes.volume(plan, run, mount, wanted, cluster.namespace, address):
        _new(cluster, run, mount, obj, fresh)


def take_back(cluster: Cluster, fresh: list[Manifest]) -> None:
    for obj in reversed(fresh):
        with contextlib.suppress(ApiError):
            cluster.api.delete(obj["kind"], obj["metadata"]["name"], uid=str(obj["metadata"]["uid"]))


# Data that is kept when a run is removed.


def left_by(cluster: Cluster, plan: Plan, data: bool) -> tuple[list[str], list[KeptData]]:
    """After a run was removed: the data that was deleted, if `data` is set, and the data that is kept."""
    gone: list[str] = []
    stays: list[KeptData] = []
    used = _used(cluster) if data else {}
    space = f"-n {cluster.namespace}"
    for mount in plan.storage:
        if mount.make is not None:
            if data and mount.source not in used:
                gone += _remove(cluster, _names(cluster, mount, mount.make))
                continue
            what = f"the NFS server {mount.source}-nfs with its disk" if mount.make.nfs else f"the claim {mount.source}"
            why = f", which {', '.join(used[mount.source])} has too" if mount.source in used else ""
            objects = " ".join(f"{kind.lower()}/{name}" for kind, name in _names(cluster, mount, mount.make))
            stays.append(KeptData(f"{what} (storage {mount.name}){why}", f"kubectl delete {space} {objects}"))
        elif mount.kind in REMOVERS and not mount.read_only:
            command = REMOVERS[mount.kind].format(source=mount.source, space=space)
            stays.append(KeptData(f"what it wrote to {mount.kind} {mount.source} (storage {mount.name})", command))
    return gone, stays


REMOVERS = {
    "pvc": "kubectl delete {space} persistentvolumeclaim/{source}    # with all that is in it",
    "s3": "aws s3 rm --recursive {source}",
    "gs": "gcloud storage rm --recursive {source}",
    "nfs": "# mount {source} and delete there what you do not need",
    "hostPath": "# delete {source} on the nodes that had ranks",
}
"""Kind of the user's own storage -> the command that deletes it. Longboat never does: it cannot know which files a run
wrote."""


def _used(cluster: Cluster) -> dict[str, list[str]]:
    """Created claim -> the runs that use it."""
    users: dict[str, list[str]] = {}
    for run, plan in cluster.plans().items():
        for mount, _ in volumes.made(plan):
            users.setdefault(mount.source, []).append(run)
    return users


def _names(cluster: Cluster, mount: Mount, make: Make) -> list[tuple[str, str]]:
    """Kind and name of all objects created for a mount, in the order of their removal."""
    objects = [("PersistentVolumeClaim", mount.source)]
    if make.nfs:
        objects += [("PersistentVolume", volumes.volume_name(mount, cluster.namespace))]
        objects += [("StatefulSet", volumes.nfs_name(mount)), ("Service", volumes.nfs_name(mount))]
        objects += [] if make.disk else [("PersistentVolumeClaim", f"{mount.source}-disk")]
    return objects


def _remove(cluster: Cluster, wanted: Iterable[tuple[str, str]]) -> list[str]:
    """Deletes the objects that Longboat created; skips others."""
    gone = []
    for kind, name in wanted:
        there = cluster.api.find(kind, name)
        labels = (there or {}).get("metadata", {}).get("labels") or {}
        if labels.get("app.kubernetes.io/managed-by") == "longboat" and cluster.api.delete(kind, name):
            gone.append(f"{kind} {name}")
    return gone


KINDS = ("PersistentVolumeClaim", "PersistentVolume", "StatefulSet", "Service")


def made_by(cluster: Cluster, run: str = "", kinds: Iterable[str] = KINDS) -> list[Manifest]:
    """Storage created for one run or for all, including runs that no longer exist."""
    selector = f"{names.PART_LABEL}={volumes.PART}" + (f",{names.RUN_LABEL}={run}" if run else "")
    objects: list[Manifest] = []
    for kind in kinds:
        try:
            objects += cluster.api.list(kind, selector)
        except ApiError as error:
            if error.status != 403:
                raise cluster.refusal(error) from None
    return [obj for obj in objects if obj["kind"] != "PersistentVolume" or _here(cluster, obj)]


def _here(cluster: Cluster, volume: Manifest) -> bool:
    return (volume["spec"].get("claimRef") or {}).get("namespace") == cluster.namespace


def remove_of(cluster: Cluster, run: str) -> list[str]:
    """Deletes the storage of a run that no longer exists, unless another run uses it."""
    used = _used(cluster)
    if any(obj["metadata"]["name"] in used for obj in made_by(cluster, run)):
        return []
    return _remove(cluster, [(obj["kind"], obj["metadata"]["name"]) for obj in made_by(cluster, run)])
