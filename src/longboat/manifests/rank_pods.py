"""Pods of a run: ranks, driver, helper and probe. Pure.

`pod_of` is the template of a role; `pod.pod_templates` fills in the values of each seat.
"""

from __future__ import annotations

from collections.abc import Sequence

from longboat.manifests.pod_base import (
    CARRIED,
    Container,
    all_variables,
    choose_nodes,
    image_of,
    keep_together,
    merged,
    own_pod,
    own_variables,
    secret_variables,
    shared,
    spec_of,
    volume_of,
)
from longboat.runtime.buckets.bucket_mounts import SCHEMES
from longboat.runtime.errors import LongboatError
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import Manifest
from longboat.runtime.plan import Mount, Plan, Resources, Role, Stage
from longboat.runtime.shapes import MERGE_ROLE
from longboat.spec.serving_commands import server_before

DRIVER = Resources(cpu=0.05, memory=64 << 20, cpu_limit=2.0, memory_limit=512 << 20)
PROBE_SECONDS = 300
HELPER_SECONDS = 6 * 3600
"""Maximum lifetime of a helper pod."""


def pod_of(plan: Plan, run: str, stage: Stage, role: Role, parts: int, edition: str = "") -> Manifest:
    """The template of a role's pods; values of a seat are empty. parts, edition: of the payload."""
    common = shared(plan)
    image = role.image or plan.image
    if not image:
        raise LongboatError(
            f"stage {stage.name}: no image; a cluster needs one",
            "set `image:` to one with Python 3.9 or newer, for example `image: python:3.12-slim`",
        )
    # A rank that restarts alone needs a name that stays the same in its next pod; otherwise an address is faster.
    host: Manifest = {"name": "LONGBOAT_AGENT_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    if role.alone:
        host = {"name": "LONGBOAT_AGENT_HOST", "value": ""}
    env: list[Manifest] = [
        host,
        *({"name": f"LONGBOAT_AGENT_{each}", "value": ""} for each in ("SEAT", "NAME", "DRIVER", "DEPOT", "PORTS")),
        {"name": "LONGBOAT_AGENT_RUN", "value": run},
        {"name": "LONGBOAT_AGENT_DIRECTORY", "value": names.RUN},
        {"name": "LONGBOAT_AGENT_TOKEN_FILE", "value": f"{names.TOKEN}/token"},
        {"name": "LONGBOAT_AGENT_LEASE", "value": f"{names.LEASE:g}"},
        *own_variables(plan.security),
        *secret_variables(plan, run, (*stage.env, *role.env)),
        *_server(plan, run, stage),
    ]
    if stage.per_node > 1:
        crew = {"CREW": stage.per_node, "GPUS": role.resources.gpu}
        env += [{"name": f"LONGBOAT_AGENT_{name}", "value": str(value)} for name, value in crew.items()]
    if common is not None:
        env = [each for each in env if each["name"] != "LONGBOAT_AGENT_DEPOT"]
    main = Container(image, env, asked(role, stage), ["agent"], role.pull_policy)
    spec = spec_of(plan, run, main, edition, parts)
    volume = {"emptyDir": {}} if common is None else volume_of(common)
    spec["volumes"] += [
        {"name": "run", **volume},
        {"name": "token", "secret": {"secretName": names.token(run), "defaultMode": 0o440}},
    ]
    container = spec["containers"][0]
    run_mount: Manifest = {"name": "run", "mountPath": names.RUN}
    if common is not None:
        run_mount["subPath"] = f"longboat/{run}"
    container["volumeMounts"] += [run_mount, {"name": "token", "mountPath": names.TOKEN, "readOnly": True}]
    for mount in plan.storage:
        if mount is not common and mount.kind not in CARRIED:
            spec["volumes"].append({"name": f"mount-{mount.name}", **volume_of(mount)})
            volume_mount = {"name": f"mount-{mount.name}", "mountPath": mount.path}
            container["volumeMounts"].append({**volume_mount, "readOnly": True} if mount.read_only else volume_mount)
    spec["restartPolicy"] = "Never"
    spec["terminationGracePeriodSeconds"] = int(stage.grace) + 20
    spec["subdomain"] = run
    account = plan.security.service_account
    spec["automountServiceAccountToken"] = bool(account)
    if account:
        spec["serviceAccountName"] = account
    choose_nodes(spec, run, stage)
    keep_together(spec, plan, run)
    labels = names.labels(run, plan.name, "rank")
    labels |= {names.STAGE_LABEL: stage.name, names.ROLE_LABEL: role.name}
    meta = {"labels": labels, "annotations": {names.SAFE_TO_EVICT: "false"}}
    made: Manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
    pod: Manifest = merged(made, own_pod(stage))
    return pod


def asked(role: Role, stage: Stage) -> Resources:
    """Resource requests of one pod, for all ranks in it."""
    rank, count = role.resources, stage.per_node
    if count == 1:
        return rank
    return Resources(
        cpu=None if rank.cpu is None else rank.cpu * count,
        memory=None if rank.memory is None else rank.memory * count,
        gpu=rank.gpu * count,
        cpu_limit=None if rank.cpu_limit is None else rank.cpu_limit * count,
        memory_limit=None if rank.memory_limit is None else rank.memory_limit * count,
    )


def _server(plan: Plan, run: str, stage: Stage) -> list[Manifest]:
    """For a load test: the variable with the address of the servers before it."""
    server = server_before(stage.name, {each.name: each for each in plan.stages}) if stage.bench else None
    return [] if server is None else [{"name": "LONGBOAT_SERVER", "value": names.service(run, server.name)}]


def roles_of(stage: Stage) -> list[Role]:
    """The roles of a stage that have pods; an `average` stage has one more, for its merge."""
    roles = list(stage.roles)
    if stage.merge:
        first = stage.roles[0]
        roles.append(Role(MERGE_ROLE, 1, True, False, stage.merge, first.resources, (), first.image, first.pull_policy))
    return roles


def driver_spec(
    plan: Plan, run: str, account: str, image: str, pending: float, lease: float, edition: str = ""
) -> Manifest:
    """The driver's pod. It needs Python, the run's volume and its account's permissions."""
    common = shared(plan)
    env: list[Manifest] = [
        {"name": "LONGBOAT_RUN", "value": run},
        {"name": "LONGBOAT_PENDING", "value": f"{pending:g}"},
        {"name": "LONGBOAT_DRIVER_LEASE", "value": f"{lease:g}"},
        {"name": "LONGBOAT_POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "LONGBOAT_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        *own_variables(plan.security),
        *(
            {**each, "name": f"LONGBOAT_REDACT_{number}"}
            for number, each in enumerate(secret_variables(plan, run, all_variables(plan)))
        ),
        *_serve_token(plan, run),
    ]
    spec = spec_of(plan, run, Container(image, env, DRIVER, ["drive"]), edition)
    container = spec["containers"][0]
    container["name"] = "driver"
    container["ports"] = [{"name": "agents", "containerPort": names.PORT}]
    volume: Manifest = {"persistentVolumeClaim": {"claimName": names.volume(run)}}
    run_mount: Manifest = {"name": "run", "mountPath": names.RUN}
    if common is not None:
        volume = volume_of(common)
        run_mount["subPath"] = f"longboat/{run}"
    spec["volumes"].append({"name": "run", **volume})
    container["volumeMounts"].append(run_mount)
    spec["serviceAccountName"] = account
    spec["terminationGracePeriodSeconds"] = 5
    spec["tolerations"] = [  # evicted sooner than by default, because the run waits for it
        {
            "key": f"node.kubernetes.io/{key}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": names.DRIVER_TOLERATION,
        }
        for key in ("not-ready", "unreachable")
    ]
    if common is not None:
        keep_together(spec, plan, run)
    return spec


def helper_of(plan: Plan, run: str, mount: Mount) -> Manifest:
    """A helper pod that gives access to a mount when no other pod has it; it exits by itself.

    It prefers the node of the run's pods, for volumes that only one node can mount."""
    variables = all_variables(plan)
    plain = [{"name": v.name, "value": v.value} for v in variables if not v.secret]
    env = [
        *own_variables(plan.security),
        *(plain + secret_variables(plan, run, variables) if mount.kind in SCHEMES else []),
    ]
    spec = spec_of(plan, run, Container(image_of(plan), env, DRIVER, ["wait"]))
    container = spec["containers"][0]
    container["name"] = names.HELPER
    if mount.kind not in SCHEMES:
        spec["volumes"].append({"name": "storage", **volume_of(mount)})
        volume_mount = {"name": "storage", "mountPath": f"{names.MOUNTS}/{mount.name}"}
        container["volumeMounts"].append({**volume_mount, "readOnly": True} if mount.read_only else volume_mount)
    account = plan.security.service_account if mount.kind in SCHEMES else ""
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
    """A pod that checks image, user and mounts before a run exists."""
    spec = spec_of(plan, "", Container(image, own_variables(plan.security), DRIVER))
    container = spec["containers"][0]
    spec["volumes"] = [each for each in spec["volumes"] if each["name"] != "ship"]
    container["volumeMounts"] = [each for each in container["volumeMounts"] if each["name"] != "ship"]
    container |= {"name": names.PROBE, "command": command}
    for mount in mounts:
        spec["volumes"].append({"name": f"mount-{mount.name}", **volume_of(mount)})
        volume_mount = {"name": f"mount-{mount.name}", "mountPath": f"{names.MOUNTS}/{mount.name}"}
        container["volumeMounts"].append({**volume_mount, "readOnly": True} if mount.read_only else volume_mount)
    spec |= {"automountServiceAccountToken": False, "restartPolicy": "Never"}
    spec |= {"activeDeadlineSeconds": PROBE_SECONDS, "terminationGracePeriodSeconds": 1}
    labels = names.labels("", plan.name, names.PROBE)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": labels}, "spec": spec}


def _serve_token(plan: Plan, run: str) -> list[Manifest]:
    """The variable with the servers' token: the driver checks that they answer."""
    variables = [variable for variable in all_variables(plan) if variable.name == "LONGBOAT_SERVE_TOKEN"]
    return [
        *secret_variables(plan, run, tuple(variables)),
        *({"name": variable.name, "value": variable.value} for variable in variables if not variable.secret),
    ]
