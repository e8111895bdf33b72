"""What the pods of a run have in common: a container as restricted as Pod Security asks, with what must be writable,
and the parts of a pod that come from the job file. Pure.
"""

from __future__ import annotations

import json
from typing import Any

from longboat.manifests import pod_identity
from longboat.runtime.buckets.bucket_mounts import SCHEMES
from longboat.runtime.errors import LongboatError
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import Manifest
from longboat.runtime.plan import Mount, Plan, Resources, Security, Stage, Variable

RUN_MOUNT = "run"
"""The mount of this name is the run's volume, if the job has one that all pods can share."""
CARRIED = (*SCHEMES, "run")
"""Kinds of storage that agents carry to the pod and back: a directory of the run directory."""
PLACES = ("pvc", "nfs", "hostPath", "emptyDir")
"""Kinds of storage that a pod can mount."""


def shared(plan: Plan) -> Mount | None:
    """The volume that holds the run directory for all pods; None: the driver keeps it, and agents send to it."""
    return next((m for m in plan.storage if m.name == RUN_MOUNT and m.kind in ("pvc", "nfs", "hostPath")), None)


def image_of(plan: Plan) -> str:
    """The job's image, or the first that a role of it names."""
    roles = (role.image for stage in plan.stages if stage.serve is None for role in stage.roles)
    return plan.image or next(filter(None, roles), "")


def spec_of(
    plan: Plan,
    run: str,
    image: str,
    policy: str,
    env: list[Manifest],
    resources: Resources,
    words: list[str],
    parts: int,
    edition: str = "",
) -> Manifest:
    """What all pods of a run have in common."""
    security = plan.security
    user, group = pod_identity.user(security), pod_identity.group(security)
    container: Manifest = {
        "name": names.CONTAINER,
        "image": image,
        "command": ["python3", "-S", "-E", f"{names.SHIP}/{names.ARCHIVE}", *words],
        "env": env,
        "resources": resources_of(resources),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "work", "mountPath": names.HOME},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "ship", "mountPath": names.SHIP, "readOnly": True},
            *pod_identity.mounts(security),
        ],
    }
    if policy:
        container["imagePullPolicy"] = policy
    sources = [names.ship(run, edition), run, *(names.code(run, edition, number) for number in range(parts))]
    spec: Manifest = {
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": user != 0,
            "runAsUser": user,
            "runAsGroup": group,
            "fsGroup": pod_identity.fs_group(security),
            "fsGroupChangePolicy": "OnRootMismatch",  # else each start of a pod walks over all files of a volume
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "work", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            {"name": "ship", "projected": {"sources": [{"configMap": {"name": each}} for each in sources]}},
        ],
    }
    if plan.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in plan.pull_secrets]
    return spec


def own_variables(security: Security) -> list[Manifest]:
    name = security.user_name or pod_identity.NAME
    return [
        {"name": "HOME", "value": f"{names.HOME}/home"},
        {"name": "USER", "value": name},
        {"name": "LOGNAME", "value": name},
        {"name": "TMPDIR", "value": "/tmp"},
    ]


def all_variables(plan: Plan) -> tuple[Variable, ...]:
    found = {v.name: v for stage in plan.stages for v in (*stage.env, *(v for r in stage.roles for v in r.env))}
    return tuple(found.values())


def secret_variables(plan: Plan, run: str, variables: tuple[Variable, ...]) -> list[Manifest]:
    known = {secret.name: secret for secret in plan.secrets}
    found = {}
    for variable in variables:
        secret = known.get(variable.secret)
        if secret is not None:
            cluster = secret.source == "cluster"
            ref = (
                {"name": secret.ref, "key": secret.key} if cluster else {"name": names.secrets(run), "key": secret.name}
            )
            found[variable.name] = {"name": variable.name, "valueFrom": {"secretKeyRef": ref}}
    return list(found.values())


def resources_of(asked: Resources) -> Manifest:
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    for target, name, value in (
        (requests, "cpu", asked.cpu),
        (limits, "cpu", asked.cpu_limit),
    ):
        if value is not None:
            target[name] = f"{round(value * 1000)}m" if value != int(value) else str(int(value))
    for target, memory in ((requests, asked.memory), (limits, asked.memory_limit)):
        if memory is not None:
            target["memory"] = quantity(memory)
    if asked.gpu:
        limits["nvidia.com/gpu"] = str(asked.gpu)
    found: Manifest = {}
    if requests:
        found["requests"] = requests
    if limits:
        found["limits"] = limits
    return found


def quantity(size: int) -> str:
    """Bytes as Kubernetes writes them."""
    for unit, power in (("Gi", 30), ("Mi", 20), ("Ki", 10)):
        if size and size % (1 << power) == 0:
            return f"{size >> power}{unit}"
    return str(size)


def volume_of(mount: Mount) -> Manifest:
    if mount.kind == "pvc":
        return {"persistentVolumeClaim": {"claimName": mount.source}}
    if mount.kind == "nfs":
        server, _, path = mount.source.partition(":")
        return {"nfs": {"server": server, "path": path}}
    if mount.kind == "hostPath":
        return {"hostPath": {"path": mount.source}}
    if mount.kind == "emptyDir" or mount.kind in SCHEMES:  # a bucket is fetched into it, and it is sent back
        return {"emptyDir": {}}
    raise LongboatError(
        f"storage {mount.name} is a directory of this machine, which a cluster cannot see",
        f"pods can mount {', '.join(PLACES)}, and fetch s3:// and gs://; or ship small data in the code tree",
    )


def choose_nodes(spec: Manifest, run: str, stage: Stage) -> None:
    if stage.node_selector:
        spec["nodeSelector"] = dict(stage.node_selector)
    tolerations = json.loads(stage.tolerations)
    if tolerations:
        spec["tolerations"] = tolerations
    if stage.topology:
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": stage.topology,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {names.RUN_LABEL: run, names.STAGE_LABEL: stage.name}},
            }
        ]


def one_node(plan: Plan) -> list[Mount]:
    """Made storage that one node at a time can mount."""
    return [m for m in plan.storage if m.make is not None and not m.make.nfs and m.make.mode == "ReadWriteOnce"]


def keep_together(spec: Manifest, plan: Plan, run: str) -> None:
    """Where storage is one node's at a time, all pods that mount it go to one node."""
    mounts = one_node(plan)
    if mounts:
        part = {} if shared(plan) in mounts else {names.PART_LABEL: "rank"}
        term = {
            "labelSelector": {"matchLabels": {names.RUN_LABEL: run, **part}},
            "topologyKey": "kubernetes.io/hostname",
        }
        spec["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def own_pod(stage: Stage) -> Manifest:
    own: Manifest = json.loads(stage.pod)
    wrong = sorted(set(own) - {"metadata", "spec"})
    if wrong:
        raise LongboatError(
            f"stage {stage.name}: `pod` has the key {wrong[0]}, and a pod has `metadata` and `spec`",
            f"write `pod: {{spec: {{{wrong[0]}: …}}}}`",
        )
    return own


_KEYED = {"containers": "name", "initContainers": "name", "volumes": "name", "env": "name", "volumeMounts": "mountPath"}


def merged(base: Any, above: Any, key: str = "") -> Any:
    """Mappings are merged, named items of lists too, other lists grow; null takes a key away."""
    if isinstance(base, dict) and isinstance(above, dict):
        found = dict(base)
        for name, value in above.items():
            if value is None:
                found.pop(name, None)
            else:
                found[name] = merged(found[name], value, name) if name in found else value
        return found
    if isinstance(base, list) and isinstance(above, list):
        by = _KEYED.get(key)
        if by is None:
            return [*base, *above]
        items = {item[by]: item for item in base}
        for item in above:
            items[item[by]] = merged(items[item[by]], item) if item.get(by) in items else item
        return list(items.values())
    return above
