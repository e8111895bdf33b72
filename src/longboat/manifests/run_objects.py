"""All objects of a run, in creation order. Pure.

The root comes first: it owns the others, so that deleting it deletes the run. It holds the plan and the pod templates
of every stage; the driver creates the pods when a stage starts. The token of driver and agents is created in the
cluster and is never part of these objects.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence

from longboat.manifests import model_serving, pod_base, pod_identity, rank_pods, tensorboard_pod
from longboat.manifests.payload import Payload
from longboat.runtime import debug_log, run_layout
from longboat.runtime.errors import LongboatError
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import CLUSTER_WIDE, Manifest
from longboat.runtime.light_dataclasses import dataclass, replace
from longboat.runtime.plan import Plan, Stage, to_json

PENDING = 600.0


@dataclass(frozen=True)
class SubmitOptions:
    """Options for submitting a run, besides the job file."""

    namespace: str = ""
    account: str = ""
    """An existing service account for the driver; empty: create one with its Role."""
    driver_image: str = ""
    volume: str = "10Gi"
    """Size of the volume for the run directory; "none": it is lost with the driver's pod."""
    storage_class: str = ""
    pending: float = PENDING
    """Seconds that a pod may be pending before the stage fails."""
    lease: float = names.DRIVER_LEASE
    """Seconds that the driver continues without a response from the API server."""
    log: str = ""
    """Level of the debug log; empty: off."""


def submit_options(namespace: str, options: Mapping[str, str], environ: Mapping[str, str]) -> SubmitOptions:
    """From the options of `run` and `export`, by their names there, and the environment."""
    from longboat.runs.formatting import seconds

    defaults = SubmitOptions()
    return SubmitOptions(
        namespace=namespace,
        account=options.get("service_account", ""),
        volume=options.get("volume", defaults.volume),
        storage_class=options.get("storage_class", ""),
        pending=seconds(options["pending_timeout"]) if "pending_timeout" in options else defaults.pending,
        lease=seconds(options["driver_lease"]) if "driver_lease" in options else defaults.lease,
        log=debug_log.level_of(environ),
    )


def for_pods(plan: Plan) -> Plan:
    """The plan with the pods' paths and without paths of this machine."""
    common = pod_base.shared(plan)
    paths = {m.name: f"{names.MOUNTS}/{m.name}" for m in plan.storage if m.kind not in pod_base.CARRIED}
    if common is not None:
        paths[common.name] = names.RUN
    storage = tuple(replace(m, path=paths.get(m.name, ""), note="") for m in plan.storage)
    return replace(plan, engine="kubernetes", file="", code=names.CODE, storage=storage)


def check(plan: Plan) -> None:
    """Raise for plans that cannot run on a cluster."""
    for stage in plan.stages:
        if stage.per_node > 1:
            _check_crew(stage)


def _check_crew(stage: Stage) -> None:
    """Ranks in one pod end together, so only ranks that restart together may share one."""
    if stage.shape != "allreduce":
        raise LongboatError(
            f"stage {stage.name}: `per_node: {stage.per_node}` needs shape allreduce on a cluster, not {stage.shape}",
            "remove `per_node`, so that each rank has its own pod",
        )
    for role in stage.roles:
        if role.ranks % stage.per_node:
            fits = ", ".join(str(n) for n in range(2, role.ranks + 1) if role.ranks % n == 0)
            raise LongboatError(
                f"stage {stage.name}: {role.ranks} ranks do not fill pods of {stage.per_node}: "
                f"{role.ranks % stage.per_node} are left over",
                f"with {role.ranks} ranks, `per_node` can be {fits}",
            )


def objects(plan: Plan, run: str, cargo: Payload, setting: SubmitOptions) -> list[Manifest]:
    """The objects that `run` submits. The submission adds the root's UID as their owner."""
    check(plan)
    inside = for_pods(plan)
    account = pod_identity.account(inside, run)
    made = [
        _root(inside, run, cargo, setting.log),
        _ship(inside, run, cargo),
        *(_code(inside, run, cargo, number) for number in range(len(cargo.parts))),
        *([] if setting.account else _rights(inside, run)),
        *([] if account is None else [account]),
        _headless(inside, run),
        _service(inside, run),
        *_claim(inside, run, setting),
        _driver(inside, run, setting, setting.driver_image or pod_base.image_of(plan), cargo),
        *tensorboard_pod.objects(inside, run, cargo.edition),
    ]
    return in_namespace(made, setting.namespace)


def in_namespace(made: list[Manifest], namespace: str) -> list[Manifest]:
    for obj in made:
        if namespace and obj["kind"] not in CLUSTER_WIDE:
            obj["metadata"]["namespace"] = namespace
    return made


def head(plan: Plan, run: str, cargo: Payload, namespace: str) -> str:
    """The comment at the top of an exported file."""
    space = f" -n {namespace}" if namespace else ""
    lines = [
        f"Run {run} of job {plan.name}, written by `longboat export`.",
        f"Start: kubectl apply --server-side -f FILE{space}",
        f"Delete, with everything it created: kubectl delete -f FILE{space}",
        f"Watch: longboat attach {run} --on kubernetes{space}",
        f"Code: {cargo.files} files, {cargo.size} bytes compressed in {len(cargo.parts)} ConfigMaps.",
        "The driver creates the run's token in the cluster.",
    ]
    kept = [mount.source for mount in plan.storage if mount.make is not None]
    if kept:
        lines.append(
            f"Deleting FILE also deletes the storage it creates, with its data: {', '.join(kept)}. To keep that:"
        )
        lines.append(f"kubectl delete -f FILE{space} -l '{names.PART_LABEL}!=storage'")
    local_secrets = [secret for secret in plan.secrets if secret.source != "cluster"]
    if local_secrets:
        given = " ".join(f"--from-literal={secret.name}=..." for secret in local_secrets)
        lines.append(f"First create its secrets: kubectl create secret generic {names.secrets(run)}{space} {given}")
    return "\n".join(lines)


def templates(plan: Plan, run: str, cargo: Payload) -> dict[str, Manifest]:
    """Key in the root -> pod template of a role."""
    return {
        names.template(stage.name, role.name): rank_pods.pod_of(plan, run, stage, role, len(cargo.parts), cargo.edition)
        for stage in plan.stages
        if stage.kind in ("gang", "bench")
        for role in rank_pods.roles_of(stage)
    }


def _root(plan: Plan, run: str, cargo: Payload, log: str) -> Manifest:
    data = {"plan.json": to_json(plan)}
    data |= {key: json.dumps(pod, indent=2) for key, pod in templates(plan, run, cargo).items()}
    data |= {
        names.servers(stage.name): json.dumps(
            model_serving.objects(plan, run, stage, len(cargo.parts), cargo.edition), indent=2
        )
        for stage in plan.stages
        if stage.serve is not None
    }
    data["code.sha256"] = cargo.sha256
    data |= pod_identity.files(plan.security)
    data |= {run_layout.FINGERPRINTS: cargo.fingerprints} if cargo.fingerprints else {}
    root = _meta("v1", "ConfigMap", run, plan, run, "root")
    root["metadata"]["annotations"] = {names.STATE: "submitted", **({names.LOG: log} if log else {})}
    if pod_base.shared(plan) is not None:
        root["metadata"]["annotations"][names.SHARED] = "true"
    return {**root, "data": data}


def _ship(plan: Plan, run: str, cargo: Payload) -> Manifest:
    data = {names.ARCHIVE: base64.b64encode(cargo.archive).decode()}
    return {
        **_meta("v1", "ConfigMap", names.ship(run, cargo.edition), plan, run, "ship"),
        "immutable": True,
        "binaryData": data,
    }


def _code(plan: Plan, run: str, cargo: Payload, number: int) -> Manifest:
    data = {f"code.{number:03}": base64.b64encode(cargo.parts[number]).decode()}
    return {
        **_meta("v1", "ConfigMap", names.code(run, cargo.edition, number), plan, run, "code"),
        "immutable": True,
        "binaryData": data,
    }


def rules(run: str, served: Sequence[str] = ()) -> list[Manifest]:
    """RBAC rules of the driver, restricted to names where possible. served: names of the Deployments and Services of
    `serve:` stages; without them the driver has no permissions for these."""
    return [*_rules(run), *(_serving_rules(served) if served else [])]


def _serving_rules(served: Sequence[str]) -> list[Manifest]:
    kinds = (
        ("apps", "deployments"),
        ("", "services"),
        ("policy", "poddisruptionbudgets"),
        ("autoscaling", "horizontalpodautoscalers"),
    )
    change = ["get", "patch", "delete"]
    return [
        {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["list", "watch"]},
        *({"apiGroups": [group], "resources": [kind], "verbs": ["create"]} for group, kind in kinds),
        *(
            {"apiGroups": [group], "resources": [kind], "verbs": change, "resourceNames": list(served)}
            for group, kind in kinds
        ),
    ]


def _rules(run: str) -> list[Manifest]:
    return [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete", "get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "get", "list"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "patch"], "resourceNames": [run]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": [names.token(run)]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["services"], "verbs": ["get"], "resourceNames": [names.driver(run)]},
        {
            "apiGroups": ["apps"],
            "resources": ["statefulsets", "statefulsets/scale"],
            "verbs": ["get", "patch"],
            "resourceNames": [names.driver(run)],
        },
    ]


def served(plan: Plan, run: str) -> list[str]:
    """Names of the plan's Deployments and Services."""
    return [names.service(run, stage.name) for stage in plan.stages if stage.serve is not None]


def role(plan: Plan, run: str) -> Manifest:
    group = "rbac.authorization.k8s.io"
    return {
        **_meta(f"{group}/v1", "Role", names.driver(run), plan, run, "rights"),
        "rules": rules(run, served(plan, run)),
    }


def _rights(plan: Plan, run: str) -> list[Manifest]:
    group, name = "rbac.authorization.k8s.io", names.driver(run)
    account = _meta("v1", "ServiceAccount", name, plan, run, "rights")
    binding = _meta(f"{group}/v1", "RoleBinding", name, plan, run, "rights")
    binding["roleRef"] = {"apiGroup": group, "kind": "Role", "name": name}
    binding["subjects"] = [{"kind": "ServiceAccount", "name": name}]
    return [account, role(plan, run), binding]


def _headless(plan: Plan, run: str) -> Manifest:
    """The headless Service that gives seats their DNS names, STAGE-ROLE-RANK.RUN."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {names.RUN_LABEL: run}}
    return {**_meta("v1", "Service", run, plan, run, "names"), "spec": spec}


def _service(plan: Plan, run: str) -> Manifest:
    """A stable address for the driver, whichever pod it is: agents need no DNS to reconnect."""
    ports = [
        {"name": "agents", "port": names.PORT, "targetPort": names.PORT},
        {"name": "depot", "port": names.DEPOT_PORT, "targetPort": names.DEPOT_PORT},
    ]
    selector = {names.RUN_LABEL: run, names.PART_LABEL: "driver"}
    spec = {"publishNotReadyAddresses": True, "selector": selector, "ports": ports}
    return {**_meta("v1", "Service", names.driver(run), plan, run, "driver"), "spec": spec}


def _claim(plan: Plan, run: str, setting: SubmitOptions) -> list[Manifest]:
    if pod_base.shared(plan) is not None or setting.volume == "none":
        return []
    spec: Manifest = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": setting.volume}}}
    if setting.storage_class:
        spec["storageClassName"] = setting.storage_class
    return [{**_meta("v1", "PersistentVolumeClaim", names.volume(run), plan, run, "volume"), "spec": spec}]


def _driver(plan: Plan, run: str, setting: SubmitOptions, image: str, cargo: Payload) -> Manifest:
    """The driver's StatefulSet: it recreates a deleted driver at once, and never runs two."""
    account = setting.account or names.driver(run)
    spec = rank_pods.driver_spec(plan, run, account, image, setting.pending, setting.lease, cargo.edition)
    if setting.volume == "none" and pod_base.shared(plan) is None:
        next(each for each in spec["volumes"] if each["name"] == "run").pop("persistentVolumeClaim")
        next(each for each in spec["volumes"] if each["name"] == "run")["emptyDir"] = {}
    labels = names.labels(run, plan.name, "driver")
    made = _meta("apps/v1", "StatefulSet", names.driver(run), plan, run, "driver")
    made["spec"] = {
        "replicas": 1,
        "serviceName": run,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {names.RUN_LABEL: run, names.PART_LABEL: "driver"}},
        "template": {"metadata": {"labels": labels}, "spec": spec},
    }
    return made


def _meta(version: str, kind: str, name: str, plan: Plan, run: str, part: str) -> Manifest:
    meta = {"name": name, "labels": names.labels(run, plan.name, part)}
    return {"apiVersion": version, "kind": kind, "metadata": meta}
