"""Common parts of a run's pods. Pure.

The container meets restricted Pod Security and has writable volumes where it needs them; resources, volumes and node
choice come from the job file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from longboat.manifests import pod_identity
from longboat.runtime.buckets.bucket_mounts import SCHEMES
from longboat.runtime.errors import LongboatError
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import Manifest
from longboat.runtime.light_dataclasses import dataclass
from longboat.runtime.plan import Mount, Plan, Resources, Security, Stage, Variable

RUN_MOUNT = "run"
"""Name of the mount for the run directory, if the job has a volume that all pods can share."""
CARRIED = (*SCHEMES, "run")
"""Kinds of storage that agents copy to the pod and back, through the run directory."""
PLACES = ("pvc", "nfs", "hostPath", "emptyDir")
"""Kinds of storage that pods can mount."""


def shared(plan: Plan) -> Mount | None:
    """The volume with the run directory for all pods; None: the driver has it, and agents upload to the driver."""
    return next((m for m in plan.storage if m.name == RUN_MOUNT and m.kind in ("pvc", "nfs", "hostPath")), None)


def image_of(plan: Plan) -> str:
    """The job's image, or else the first image of a role."""
    roles = (role.image for stage in plan.stages if stage.serve is None for role in stage.roles)
    return plan.image or next(filter(None, roles), "")


@dataclass(frozen=True)
class Container:
    """The main container of a pod."""

    image: str
    env: list[Manifest]
    resources: Resources
    arguments: Sequence[str] = ()
    """Of the agent's archive."""
    pull_policy: str = ""


def spec_of(plan: Plan, run: str, main: Container, edition: str = "", parts: int = 0) -> Manifest:
    """The pod spec that all pods of a run start from. parts: ConfigMaps with the run's code that it needs."""
    security = plan.security
    user, group = pod_identity.user(security), pod_identity.group(security)
    container: Manifest = {
        "name": names.CONTAINER,
        "image": main.image,
        "command": ["python3", "-S", "-E", f"{names.SHIP}/{names.ARCHIVE}", *main.arguments],
        "env": main.env,
        "resources": resources_of(main.resources),
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
    if main.pull_policy:
        container["imagePullPolicy"] = main.pull_policy
    sources = [names.ship(run, edition), run, *(names.code(run, edition, number) for number in range(parts))]
    spec: Manifest = {
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": user != 0,
            "runAsUser": user,
            "runAsGroup": group,
            "fsGroup": pod_identity.fs_group(security),
            "fsGroupChangePolicy": "OnRootMismatch",  # else each pod start changes all files of a volume
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
    by_name = {v.name: v for stage in plan.stages for v in (*stage.env, *(v for r in stage.roles for v in r.env))}
    return tuple(by_name.values())


def secret_variables(plan: Plan, run: str, variables: tuple[Variable, ...]) -> list[Manifest]:
    known = {secret.name: secret for secret in plan.secrets}
    references = {}
    for variable in variables:
        secret = known.get(variable.secret)
        if secret is not None:
            cluster = secret.source == "cluster"
            ref = (
                {"name": secret.ref, "key": secret.key} if cluster else {"name": names.secrets(run), "key": secret.name}
            )
            references[variable.name] = {"name": variable.name, "valueFrom": {"secretKeyRef": ref}}
    return list(references.values())


def resources_of(resources: Resources) -> Manifest:
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    for target, name, value in (
        (requests, "cpu", resources.cpu),
        (limits, "cpu", resources.cpu_limit),
    ):
        if value is not None:
            target[name] = f"{round(value * 1000)}m" if value != int(value) else str(int(value))
    for target, memory in ((requests, resources.memory), (limits, resources.memory_limit)):
        if memory is not None:
            target["memory"] = quantity(memory)
    if resources.gpu:
        limits["nvidia.com/gpu"] = str(resources.gpu)
    manifest: Manifest = {}
    if requests:
        manifest["requests"] = requests
    if limits:
        manifest["limits"] = limits
    return manifest


def quantity(size: int) -> str:
    """Bytes as a Kubernetes quantity."""
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
    if mount.kind == "emptyDir" or mount.kind in SCHEMES:  # a bucket is downloaded into it and uploaded from it
        return {"emptyDir": {}}
    raise LongboatError(
        f"storage {mount.name} is a directory on this machine, which a cluster cannot access",
        f"use {', '.join(PLACES)}, s3:// or gs://, or put small data into the code directory",
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
    """Created volumes that only one node at a time can mount."""
    return [m for m in plan.storage if m.make is not None and not m.make.nfs and m.make.mode == "ReadWriteOnce"]


def keep_together(spec: Manifest, plan: Plan, run: str) -> None:
    """Schedule all pods on one node if they mount a volume that only one node can mount."""
    mounts = one_node(plan)
    if mounts:
        part = {} if shared(plan) in mounts else {names.PART_LABEL: "rank"}
        term = {
            "labelSelector": {"matchLabels": {names.RUN_LABEL: run, **part}},
            "topologyKey": "kubernetes.io/hostname",
        }
        spec["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def own_pod(stage: Stage) -> Manifest:
    template: Manifest = json.loads(stage.pod)
    wrong = sorted(set(template) - {"metadata", "spec"})
    if wrong:
        raise LongboatError(
            f"stage {stage.name}: unknown key {wrong[0]} in `pod`, which has `metadata` and `spec`",
            f"write `pod: {{spec: {{{wrong[0]}: …}}}}`",
        )
    return template


_KEYED = {"containers": "name", "initContainers": "name", "volumes": "name", "env": "name", "volumeMounts": "mountPath"}


def merged(base: Any, above: Any, key: str = "") -> Any:
    """Merge mappings and named list items, append other lists; null removes a key."""
    if isinstance(base, dict) and isinstance(above, dict):
        result = dict(base)
        for name, value in above.items():
            if value is None:
                result.pop(name, None)
            else:
                result[name] = merged(result[name], value, name) if name in result else value
        return result
    if isinstance(base, list) and isinstance(above, list):
        by = _KEYED.get(key)
        if by is None:
            return [*base, *above]
        items = {item[by]: item for item in base}
        for item in above:
            items[item[by]] = merged(items[item[by]], item) if item.get(by) in items else item
        return list(items.values())
    return above
