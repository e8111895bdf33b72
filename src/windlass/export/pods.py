"""The pods of a run: as restricted as Pod Security asks, with what a rank needs to be writable.

Pure. `pod_of` gives the template of a role; the seat's own values are filled in where pods are
made (`kube.seats`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from windlass.buckets.wrapping import SCHEMES
from windlass.errors import WindlassError
from windlass.export import identity
from windlass.kube import names
from windlass.kube.api import Manifest
from windlass.plan import Mount, Plan, Resources, Role, Security, Stage, Variable
from windlass.shapes import MERGE_ROLE
from windlass.spec.serving import server_before

RUN_MOUNT = "run"
"""The mount of this name is the run's volume, if the job has one that all pods can share."""
DRIVER = Resources(cpu=0.05, memory=64 << 20, cpu_limit=2.0, memory_limit=512 << 20)
PROBE_SECONDS = 300
HELPER_SECONDS = 6 * 3600
"""A helper's pod is ended after this, whatever it does."""
BUCKETS = ("s3", "gs")
"""Kinds of storage that a rank's command is wrapped in: fetched before it, sent back after it."""
CARRIED = (*BUCKETS, "run")
"""Kinds of storage that agents carry to the pod and back: a directory of the run directory."""
PLACES = ("pvc", "nfs", "hostPath", "emptyDir")
"""Kinds of storage that a pod can mount."""


def shared(plan: Plan) -> Mount | None:
    """The volume that holds the run directory for all pods; None: the driver keeps it, and agents send to it."""
    return next((m for m in plan.storage if m.name == RUN_MOUNT and m.kind in ("pvc", "nfs", "hostPath")), None)


def pod_of(plan: Plan, run: str, stage: Stage, role: Role, parts: int, edition: str = "") -> Manifest:
    """The template of a role's pods; values that are a seat's own are empty. parts, edition: of the cargo."""
    common = shared(plan)
    image = role.image or plan.image
    if not image:
        raise WindlassError(
            f"stage {stage.name}: a cluster needs an image, and the job names none",
            "add `image:` with one that has Python 3.9 or newer, for example `image: python:3.12-slim`",
        )
    # A rank whose peers train on without it must be found by the same name in its next pod; an address is quicker.
    host: Manifest = {"name": "WINDLASS_AGENT_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    if role.alone:
        host = {"name": "WINDLASS_AGENT_HOST", "value": ""}
    env: list[Manifest] = [
        host,
        *({"name": f"WINDLASS_AGENT_{each}", "value": ""} for each in ("SEAT", "NAME", "DRIVER", "DEPOT", "PORTS")),
        {"name": "WINDLASS_AGENT_RUN", "value": run},
        {"name": "WINDLASS_AGENT_DIRECTORY", "value": names.RUN},
        {"name": "WINDLASS_AGENT_TOKEN_FILE", "value": f"{names.TOKEN}/token"},
        {"name": "WINDLASS_AGENT_LEASE", "value": f"{names.LEASE:g}"},
        *_own(plan.security),
        *_secret_variables(plan, run, (*stage.env, *role.env)),
        *_server(plan, run, stage),
    ]
    if stage.per_node > 1:
        crew = {"CREW": stage.per_node, "GPUS": role.resources.gpu}
        env += [{"name": f"WINDLASS_AGENT_{name}", "value": str(value)} for name, value in crew.items()]
    if common is not None:
        env = [each for each in env if each["name"] != "WINDLASS_AGENT_DEPOT"]
    spec = _spec(plan, run, image, role.pull_policy, env, asked(role, stage), ["agent"], parts, edition)
    volume = {"emptyDir": {}} if common is None else _volume(common)
    spec["volumes"] += [
        {"name": "run", **volume},
        {"name": "token", "secret": {"secretName": names.token(run), "defaultMode": 0o440}},
    ]
    container = spec["containers"][0]
    place: Manifest = {"name": "run", "mountPath": names.RUN}
    if common is not None:
        place["subPath"] = f"windlass/{run}"
    container["volumeMounts"] += [place, {"name": "token", "mountPath": names.TOKEN, "readOnly": True}]
    for mount in plan.storage:
        if mount is not common and mount.kind not in CARRIED:
            spec["volumes"].append({"name": f"mount-{mount.name}", **_volume(mount)})
            told = {"name": f"mount-{mount.name}", "mountPath": mount.path}
            container["volumeMounts"].append({**told, "readOnly": True} if mount.read_only else told)
    spec["restartPolicy"] = "Never"
    spec["terminationGracePeriodSeconds"] = int(stage.grace) + 20
    spec["subdomain"] = run
    account = plan.security.service_account
    spec["automountServiceAccountToken"] = bool(account)
    if account:
        spec["serviceAccountName"] = account
    _placed(spec, run, stage)
    _together(spec, plan, run)
    labels = names.labels(run, plan.name, "rank")
    labels |= {names.STAGE_LABEL: stage.name, names.ROLE_LABEL: role.name}
    meta = {"labels": labels, "annotations": {names.SAFE_TO_EVICT: "false"}}
    made: Manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
    found: Manifest = _merged(made, _own_pod(stage))
    return found


def asked(role: Role, stage: Stage) -> Resources:
    """By one pod: for all ranks in it."""
    one, count = role.resources, stage.per_node
    if count == 1:
        return one
    return Resources(
        cpu=None if one.cpu is None else one.cpu * count,
        memory=None if one.memory is None else one.memory * count,
        gpu=one.gpu * count,
        cpu_limit=None if one.cpu_limit is None else one.cpu_limit * count,
        memory_limit=None if one.memory_limit is None else one.memory_limit * count,
    )


def _server(plan: Plan, run: str, stage: Stage) -> list[Manifest]:
    """A load test is told where the servers are that it comes after."""
    found = server_before(stage.name, {each.name: each for each in plan.stages}) if stage.bench else None
    return [] if found is None else [{"name": "WINDLASS_SERVER", "value": names.service(run, found.name)}]


def roles_of(stage: Stage) -> list[Role]:
    """The roles of a stage that have pods: an `average` stage has one for its merge besides."""
    found = list(stage.roles)
    if stage.merge:
        first = stage.roles[0]
        found.append(Role(MERGE_ROLE, 1, True, False, stage.merge, first.resources, (), first.image, first.pull_policy))
    return found


def driver_spec(
    plan: Plan, run: str, account: str, image: str, pending: float, lease: float, edition: str = ""
) -> Manifest:
    """The pod of the driver: it needs Python, the run's volume, and the rights of its account."""
    common = shared(plan)
    env: list[Manifest] = [
        {"name": "WINDLASS_RUN", "value": run},
        {"name": "WINDLASS_PENDING", "value": f"{pending:g}"},
        {"name": "WINDLASS_DRIVER_LEASE", "value": f"{lease:g}"},
        {"name": "WINDLASS_POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "WINDLASS_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        *_own(plan.security),
        *(
            {**each, "name": f"WINDLASS_REDACT_{number}"}
            for number, each in enumerate(_secret_variables(plan, run, _all_variables(plan)))
        ),
        *_serve_token(plan, run),
    ]
    spec = _spec(plan, run, image, "", env, DRIVER, ["drive"], 0, edition)
    container = spec["containers"][0]
    container["name"] = "driver"
    container["ports"] = [{"name": "agents", "containerPort": names.PORT}]
    volume: Manifest = {"persistentVolumeClaim": {"claimName": names.volume(run)}}
    place: Manifest = {"name": "run", "mountPath": names.RUN}
    if common is not None:
        volume = _volume(common)
        place["subPath"] = f"windlass/{run}"
    spec["volumes"].append({"name": "run", **volume})
    container["volumeMounts"].append(place)
    spec["serviceAccountName"] = account
    spec["terminationGracePeriodSeconds"] = 5
    spec["tolerations"] = [  # told to go sooner than pods are by default: what it drives waits for it
        {
            "key": f"node.kubernetes.io/{key}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": names.DRIVER_LOST,
        }
        for key in ("not-ready", "unreachable")
    ]
    if common is not None:
        _together(spec, plan, run)
    return spec


def helper_of(plan: Plan, run: str, mount: Mount) -> Manifest:
    """A pod that looks into one of the job's mounts when no other pod is there to ask; it ends by itself. It goes to
    the node of the run's pods if it can, for a disk that only one node may have at a time."""
    variables = _all_variables(plan)
    plain = [{"name": v.name, "value": v.value} for v in variables if not v.secret]
    env = [*_own(plan.security), *(plain + _secret_variables(plan, run, variables) if mount.kind in BUCKETS else [])]
    spec = _spec(plan, run, image_of(plan), "", env, DRIVER, ["rest"], 0)
    container = spec["containers"][0]
    container["name"] = names.HELPER
    if mount.kind not in BUCKETS:
        spec["volumes"].append({"name": "storage", **_volume(mount)})
        told = {"name": "storage", "mountPath": f"{names.MOUNTS}/{mount.name}"}
        container["volumeMounts"].append({**told, "readOnly": True} if mount.read_only else told)
    account = plan.security.service_account if mount.kind in BUCKETS else ""
    spec["automountServiceAccountToken"] = bool(account)
    if account:
        spec["serviceAccountName"] = account
    near = {"labelSelector": {"matchLabels": {names.RUN_LABEL: run}}, "topologyKey": "kubernetes.io/hostname"}
    spec["affinity"] = {
        "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": near}]}
    }
    spec["restartPolicy"] = "Never"
    spec["activeDeadlineSeconds"] = HELPER_SECONDS
    spec["terminationGracePeriodSeconds"] = 2
    labels = names.labels(run, plan.name, names.HELPER)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": labels}, "spec": spec}


def probe_of(plan: Plan, image: str, mounts: Sequence[Mount], command: list[str]) -> Manifest:
    """A pod that tries, before there is a run, what its pods will need: the image, the user, the mounts."""
    spec = _spec(plan, "", image, "", _own(plan.security), DRIVER, [], 0)
    container = spec["containers"][0]
    spec["volumes"] = [each for each in spec["volumes"] if each["name"] != "ship"]
    container["volumeMounts"] = [each for each in container["volumeMounts"] if each["name"] != "ship"]
    container |= {"name": names.PROBE, "command": command}
    for mount in mounts:
        spec["volumes"].append({"name": f"mount-{mount.name}", **_volume(mount)})
        told = {"name": f"mount-{mount.name}", "mountPath": f"{names.MOUNTS}/{mount.name}"}
        container["volumeMounts"].append({**told, "readOnly": True} if mount.read_only else told)
    spec |= {"automountServiceAccountToken": False, "restartPolicy": "Never"}
    spec |= {"activeDeadlineSeconds": PROBE_SECONDS, "terminationGracePeriodSeconds": 1}
    labels = names.labels("", plan.name, names.PROBE)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": labels}, "spec": spec}


def image_of(plan: Plan) -> str:
    """The job's image, or the first that a role of it names."""
    roles = (role.image for stage in plan.stages if stage.serve is None for role in stage.roles)
    return plan.image or next(filter(None, roles), "")


def _serve_token(plan: Plan, run: str) -> list[Manifest]:
    """The driver asks the servers whether they answer, so it needs what they ask of clients."""
    found = [each for each in _all_variables(plan) if each.name == "WINDLASS_SERVE_TOKEN"]
    return [
        *_secret_variables(plan, run, tuple(found)),
        *({"name": each.name, "value": each.value} for each in found if not each.secret),
    ]


def _spec(
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
    user, group = identity.user(security), identity.group(security)
    container: Manifest = {
        "name": names.CONTAINER,
        "image": image,
        "command": ["python3", "-S", "-E", f"{names.SHIP}/{names.ARCHIVE}", *words],
        "env": env,
        "resources": _resources(resources),
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
            *identity.mounts(security),
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
            "fsGroup": identity.fs_group(security),
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


def _own(security: Security) -> list[Manifest]:
    name = security.user_name or identity.NAME
    return [
        {"name": "HOME", "value": f"{names.HOME}/home"},
        {"name": "USER", "value": name},
        {"name": "LOGNAME", "value": name},
        {"name": "TMPDIR", "value": "/tmp"},
    ]


def _all_variables(plan: Plan) -> tuple[Variable, ...]:
    found = {v.name: v for stage in plan.stages for v in (*stage.env, *(v for r in stage.roles for v in r.env))}
    return tuple(found.values())


def _secret_variables(plan: Plan, run: str, variables: tuple[Variable, ...]) -> list[Manifest]:
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


def _resources(asked: Resources) -> Manifest:
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


def _volume(mount: Mount) -> Manifest:
    if mount.kind == "pvc":
        return {"persistentVolumeClaim": {"claimName": mount.source}}
    if mount.kind == "nfs":
        server, _, path = mount.source.partition(":")
        return {"nfs": {"server": server, "path": path}}
    if mount.kind == "hostPath":
        return {"hostPath": {"path": mount.source}}
    if mount.kind == "emptyDir" or mount.kind in SCHEMES:  # a bucket is fetched into it, and it is sent back
        return {"emptyDir": {}}
    raise WindlassError(
        f"storage {mount.name} is a directory of this machine, which a cluster cannot see",
        f"pods can mount {', '.join(PLACES)}, and fetch s3:// and gs://; or ship small data in the code tree",
    )


def _placed(spec: Manifest, run: str, stage: Stage) -> None:
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


def _together(spec: Manifest, plan: Plan, run: str) -> None:
    """Where storage is one node's at a time, all pods that mount it go to one node."""
    mounts = one_node(plan)
    if mounts:
        part = {} if shared(plan) in mounts else {names.PART_LABEL: "rank"}
        term = {
            "labelSelector": {"matchLabels": {names.RUN_LABEL: run, **part}},
            "topologyKey": "kubernetes.io/hostname",
        }
        spec["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def _own_pod(stage: Stage) -> Manifest:
    own: Manifest = json.loads(stage.pod)
    wrong = sorted(set(own) - {"metadata", "spec"})
    if wrong:
        raise WindlassError(
            f"stage {stage.name}: `pod` has the key {wrong[0]}, and a pod has `metadata` and `spec`",
            f"write `pod: {{spec: {{{wrong[0]}: …}}}}`",
        )
    return own


_KEYED = {"containers": "name", "initContainers": "name", "volumes": "name", "env": "name", "volumeMounts": "mountPath"}


def _merged(base: Any, above: Any, key: str = "") -> Any:
    """Mappings are merged, named items of lists too, other lists grow; null takes a key away."""
    if isinstance(base, dict) and isinstance(above, dict):
        found = dict(base)
        for name, value in above.items():
            if value is None:
                found.pop(name, None)
            else:
                found[name] = _merged(found[name], value, name) if name in found else value
        return found
    if isinstance(base, list) and isinstance(above, list):
        by = _KEYED.get(key)
        if by is None:
            return [*base, *above]
        items = {item[by]: item for item in base}
        for item in above:
            items[item[by]] = _merged(items[item[by]], item) if item.get(by) in items else item
        return list(items.values())
    return above
