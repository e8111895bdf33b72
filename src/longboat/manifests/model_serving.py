"""Objects of a `serve:` stage: Deployment, Service, PodDisruptionBudget and autoscaler.

Pure. The root object holds them, like the pods of later stages, and the driver applies them when the stage starts.
`pod.model_servers` fills in what is known only then: the model and the driver's address. A server has no token of the
run: only the init container that downloads the model has it, and it exits before the server starts.
"""

from __future__ import annotations

from longboat.manifests.pod_base import (
    Container,
    choose_nodes,
    image_of,
    merged,
    own_pod,
    own_variables,
    resources_of,
    secret_variables,
    shared,
    spec_of,
    volume_of,
)
from longboat.manifests.rank_pods import DRIVER as SMALL
from longboat.runtime.errors import LongboatError
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import Manifest
from longboat.runtime.plan import Autoscale, Plan, Role, Serve, Stage

SPARE = 5
"""Seconds of a pod's grace period beyond what the server needs to stop."""
DEADLINE = 600
"""progressDeadlineSeconds of the Deployment."""
HOST = "kubernetes.io/hostname"


def objects(plan: Plan, run: str, stage: Stage, parts: int = 0, edition: str = "") -> list[Manifest]:
    """All objects of a `serve:` stage, in creation order. parts, edition: of the payload."""
    serve = stage.serve
    assert serve is not None
    made = [_service(plan, run, stage, serve), _deployment(plan, run, stage, serve, parts, edition)]
    if max(serve.replicas, serve.autoscale.most if serve.autoscale else 1) > 1:
        made.append(_budget(plan, run, stage))
    if serve.autoscale is not None:
        made.append(_scaler(plan, run, stage, serve, serve.autoscale))
    return made


def warnings(plan: Plan) -> list[str]:
    """Warnings about servers that others can reach without a login."""
    return [
        f"stage {stage.name}: anyone who can reach its {stage.serve.expose} can use the model: there is no login"
        + ("" if stage.serve.image else " (set `token:` to require one)")
        for stage in plan.stages
        if stage.serve is not None and stage.serve.expose != "ClusterIP"
        if not stage.serve.token
    ]


def _deployment(plan: Plan, run: str, stage: Stage, serve: Serve, parts: int, edition: str) -> Manifest:
    """The Deployment. It rolls without downtime: a new pod is ready before an old one stops, and the old one answers
    until no request can reach it any more."""
    made = _meta("apps/v1", "Deployment", plan, run, stage)
    labels = {**names.labels(run, plan.name, names.SERVER), names.STAGE_LABEL: stage.name}
    template: Manifest = {"metadata": {"labels": labels, "annotations": {names.MODEL: ""}}}
    template["spec"] = _pod(plan, run, stage, serve, parts, edition)
    spec: Manifest = {
        "replicas": serve.replicas,
        "progressDeadlineSeconds": DEADLINE,
        "revisionHistoryLimit": 2,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "selector": {"matchLabels": _chosen(run, stage)},
        "template": merged(template, own_pod(stage)),
    }
    if serve.autoscale is not None:
        del spec["replicas"]  # set by the autoscaler; the driver fills in its value, so that an apply does not reset it
    return {**made, "spec": spec}


def _pod(plan: Plan, run: str, stage: Stage, serve: Serve, parts: int, edition: str) -> Manifest:
    role = stage.roles[0]
    python = image_of(plan)
    if not python:
        raise LongboatError(
            f"stage {stage.name}: no image; a cluster needs one",
            "set `image:` to one with Python and the server's libraries; see docs/kubernetes.md, Serving",
        )
    env = [*own_variables(plan.security), *secret_variables(plan, run, (*stage.env, *role.env))]
    env += [{"name": v.name, "value": v.value} for v in (*stage.env, *role.env) if not v.secret]
    env += [{"name": "LONGBOAT_RUN_ID", "value": run}, {"name": "LONGBOAT_STAGE", "value": stage.name}]
    arguments = ["server", *role.command]
    main = Container(role.image or python, env, role.resources, arguments, role.pull_policy)
    spec = spec_of(plan, run, main, edition, parts)
    container = spec["containers"][0]
    container["name"] = names.SERVER
    container["ports"] = [
        {"name": "rest", "containerPort": serve.port},
        {"name": "grpc", "containerPort": serve.grpc_port},
    ]
    container["volumeMounts"].append({"name": "models", "mountPath": names.MODELS, "readOnly": True})
    if serve.image:
        _stock(container, serve, role)
    else:
        _probes(container, serve)
    spec["initContainers"] = [_fetcher(plan, run, python, serve, stage, edition)]
    spec["volumes"] += [
        {"name": "models", "emptyDir": {}},
        {"name": "token", "secret": {"secretName": names.token(run), "defaultMode": 0o440}},
    ]
    common = shared(plan)
    if common is not None:
        spec["volumes"].append({"name": "run", **volume_of(common)})
    spec["terminationGracePeriodSeconds"] = int(names.LINGER + stage.grace) + SPARE
    account = plan.security.service_account
    spec["automountServiceAccountToken"] = bool(account)
    if account:
        spec["serviceAccountName"] = account
    choose_nodes(spec, run, stage)
    spec.setdefault("topologySpreadConstraints", [_spread(run, stage)])
    return spec


def _probes(container: Manifest, serve: Serve) -> None:
    """Probes of Longboat's server: it may take long to load a model, and must answer after that."""
    alive = {"httpGet": {"path": "/healthz", "port": serve.port}, "timeoutSeconds": 5}
    container["startupProbe"] = {**alive, "periodSeconds": 1, "failureThreshold": DEADLINE}
    container["readinessProbe"] = {**alive, "httpGet": {"path": "/readyz", "port": serve.port}, "periodSeconds": 2}
    container["livenessProbe"] = {**alive, "periodSeconds": 10, "failureThreshold": 6}


def _stock(container: Manifest, serve: Serve, role: Role) -> None:
    """Command and probes of TF Serving. It exits at once on SIGTERM, so a preStop hook waits first."""
    del container["command"]
    container["args"] = list(role.command)
    probe = {"httpGet": {"path": f"/v1/models/{serve.name}", "port": serve.port}, "timeoutSeconds": 5}
    container["startupProbe"] = {**probe, "periodSeconds": 1, "failureThreshold": DEADLINE}
    container["readinessProbe"] = {**probe, "periodSeconds": 2}
    container["livenessProbe"] = {
        "tcpSocket": {"port": serve.grpc_port},
        "timeoutSeconds": 5,
        "periodSeconds": 10,
        "failureThreshold": 6,
    }
    container["lifecycle"] = {"preStop": {"exec": {"command": ["sleep", f"{names.LINGER:g}"]}}}


def _fetcher(plan: Plan, run: str, image: str, serve: Serve, stage: Stage, edition: str) -> Manifest:
    """The init container that downloads the model from the driver, and waits while the driver is away."""
    env: list[Manifest] = [
        {"name": "LONGBOAT_RUN", "value": run},
        {"name": "LONGBOAT_STAGE", "value": stage.name},
        {"name": "LONGBOAT_MODEL", "value": ""},
        {"name": "LONGBOAT_DEPOT", "value": ""},
        {"name": "LONGBOAT_TARGET", "value": f"{names.MODELS}/{serve.name}"},
        *own_variables(plan.security),
    ]
    container: Manifest = spec_of(plan, run, Container(image, env, SMALL, ["fetch"]), edition)["containers"][0]
    container["name"] = names.FETCHER
    container["resources"] = resources_of(SMALL)
    container["volumeMounts"] += [
        {"name": "models", "mountPath": names.MODELS},
        {"name": "token", "mountPath": names.TOKEN, "readOnly": True},
    ]
    if shared(plan) is not None:
        container["env"] = [variable for variable in env if variable["name"] != "LONGBOAT_DEPOT"]
        run_mount = {"name": "run", "mountPath": names.RUN, "subPath": f"longboat/{run}", "readOnly": True}
        container["volumeMounts"].append(run_mount)
    return container


def _service(plan: Plan, run: str, stage: Stage, serve: Serve) -> Manifest:
    ports = [
        {"name": "rest", "port": serve.port, "targetPort": serve.port},
        {"name": "grpc", "port": serve.grpc_port, "targetPort": serve.grpc_port},
    ]
    spec = {"type": serve.expose, "selector": _chosen(run, stage), "ports": ports}
    return {**_meta("v1", "Service", plan, run, stage), "spec": spec}


def _budget(plan: Plan, run: str, stage: Stage) -> Manifest:
    """The PodDisruptionBudget: draining nodes evicts one server at a time."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": _chosen(run, stage)}}
    return {**_meta("policy/v1", "PodDisruptionBudget", plan, run, stage), "spec": spec}


def _scaler(plan: Plan, run: str, stage: Stage, serve: Serve, autoscale: Autoscale) -> Manifest:
    target = {"type": "Utilization", "averageUtilization": autoscale.cpu}
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": names.service(run, stage.name)},
        "minReplicas": serve.replicas,
        "maxReplicas": autoscale.most,
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
    }
    return {**_meta("autoscaling/v2", "HorizontalPodAutoscaler", plan, run, stage), "spec": spec}


def _spread(run: str, stage: Stage) -> Manifest:
    """Spread over nodes if possible: two servers on a node are better than one."""
    return {
        "maxSkew": 1,
        "topologyKey": HOST,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": _chosen(run, stage)},
    }


def _chosen(run: str, stage: Stage) -> dict[str, str]:
    return {names.RUN_LABEL: run, names.PART_LABEL: names.SERVER, names.STAGE_LABEL: stage.name}


def _meta(version: str, kind: str, plan: Plan, run: str, stage: Stage) -> Manifest:
    labels = {**names.labels(run, plan.name, names.SERVER), names.STAGE_LABEL: stage.name}
    meta = {"name": names.service(run, stage.name), "labels": labels}
    return {"apiVersion": version, "kind": kind, "metadata": meta}
