"""The objects of a stage that serves: a Deployment, its Service, what keeps some of its pods up, what adds more.

Pure. They stand in the root like the pods of later stages, and the driver applies them when their turn comes. What
is known only then (which model, where the driver is) is filled in by `pod.model_servers`. A server holds no token of
the run: the container that brings the model does, and it has ended before the server starts.
"""

from __future__ import annotations

from longboat.manifests.pod_base import (
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
"""Seconds of a pod's grace beyond what the server itself needs to end."""
DEADLINE = 600
"""Seconds in which a roll must get on before the Deployment says that it does not."""
HOST = "kubernetes.io/hostname"


def objects(plan: Plan, run: str, stage: Stage, parts: int = 0, edition: str = "") -> list[Manifest]:
    """All objects of a stage that serves, in the order in which they are made. parts, edition: of the cargo."""
    serve = stage.serve
    assert serve is not None
    made = [_service(plan, run, stage, serve), _deployment(plan, run, stage, serve, parts, edition)]
    if max(serve.replicas, serve.autoscale.most if serve.autoscale else 1) > 1:
        made.append(_budget(plan, run, stage))
    if serve.autoscale is not None:
        made.append(_scaler(plan, run, stage, serve, serve.autoscale))
    return made


def warnings(plan: Plan) -> list[str]:
    """What whoever submits should hear about servers that others can reach."""
    return [
        f"stage {stage.name}: everybody who can reach its {stage.serve.expose} can use the model: there is no login"
        + ("" if stage.serve.image else " (`token:` would be one)")
        for stage in plan.stages
        if stage.serve is not None and stage.serve.expose != "ClusterIP"
        if not stage.serve.token
    ]


def _deployment(plan: Plan, run: str, stage: Stage, serve: Serve, parts: int, edition: str) -> Manifest:
    """Rolls without a gap: a new pod is ready before an old one is asked to end, and that one goes on answering until
    no request can reach it any more."""
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
        del spec["replicas"]  # the autoscaler's; the driver fills in what that has decided, lest an apply takes it back
    return {**made, "spec": spec}


def _pod(plan: Plan, run: str, stage: Stage, serve: Serve, parts: int, edition: str) -> Manifest:
    role = stage.roles[0]
    python = image_of(plan)
    if not python:
        raise LongboatError(
            f"stage {stage.name}: a cluster needs an image, and the job names none",
            "add `image:` with one that has Python and the server's libraries; see the page on Kubernetes, Serving",
        )
    env = [*own_variables(plan.security), *secret_variables(plan, run, (*stage.env, *role.env))]
    env += [{"name": v.name, "value": v.value} for v in (*stage.env, *role.env) if not v.secret]
    env += [{"name": "LONGBOAT_RUN_ID", "value": run}, {"name": "LONGBOAT_STAGE", "value": stage.name}]
    words = ["server", *role.command]
    spec = spec_of(plan, run, role.image or python, role.pull_policy, env, role.resources, words, parts, edition)
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
    """Of our own server. It may take its time to load a model; once it has, it must answer."""
    alive = {"httpGet": {"path": "/healthz", "port": serve.port}, "timeoutSeconds": 5}
    container["startupProbe"] = {**alive, "periodSeconds": 1, "failureThreshold": DEADLINE}
    container["readinessProbe"] = {**alive, "httpGet": {"path": "/readyz", "port": serve.port}, "periodSeconds": 2}
    container["livenessProbe"] = {**alive, "periodSeconds": 10, "failureThreshold": 6}


def _stock(container: Manifest, serve: Serve, role: Role) -> None:
    """Of TF Serving: the image's own program, which ends at once when it is told to, hence a pause before that."""
    del container["command"]
    container["args"] = list(role.command)
    there = {"httpGet": {"path": f"/v1/models/{serve.name}", "port": serve.port}, "timeoutSeconds": 5}
    container["startupProbe"] = {**there, "periodSeconds": 1, "failureThreshold": DEADLINE}
    container["readinessProbe"] = {**there, "periodSeconds": 2}
    container["livenessProbe"] = {
        "tcpSocket": {"port": serve.grpc_port},
        "timeoutSeconds": 5,
        "periodSeconds": 10,
        "failureThreshold": 6,
    }
    container["lifecycle"] = {"preStop": {"exec": {"command": ["sleep", f"{names.LINGER:g}"]}}}


def _fetcher(plan: Plan, run: str, image: str, serve: Serve, stage: Stage, edition: str) -> Manifest:
    """Brings the model from the driver; while that is away it waits."""
    env: list[Manifest] = [
        {"name": "LONGBOAT_RUN", "value": run},
        {"name": "LONGBOAT_STAGE", "value": stage.name},
        {"name": "LONGBOAT_MODEL", "value": ""},
        {"name": "LONGBOAT_DEPOT", "value": ""},
        {"name": "LONGBOAT_TARGET", "value": f"{names.MODELS}/{serve.name}"},
        *own_variables(plan.security),
    ]
    container: Manifest = spec_of(plan, run, image, "", env, SMALL, ["fetch"], 0, edition)["containers"][0]
    container["name"] = names.FETCHER
    container["resources"] = resources_of(SMALL)
    container["volumeMounts"] += [
        {"name": "models", "mountPath": names.MODELS},
        {"name": "token", "mountPath": names.TOKEN, "readOnly": True},
    ]
    if shared(plan) is not None:
        container["env"] = [each for each in env if each["name"] != "LONGBOAT_DEPOT"]
        place = {"name": "run", "mountPath": names.RUN, "subPath": f"longboat/{run}", "readOnly": True}
        container["volumeMounts"].append(place)
    return container


def _service(plan: Plan, run: str, stage: Stage, serve: Serve) -> Manifest:
    ports = [
        {"name": "rest", "port": serve.port, "targetPort": serve.port},
        {"name": "grpc", "port": serve.grpc_port, "targetPort": serve.grpc_port},
    ]
    spec = {"type": serve.expose, "selector": _chosen(run, stage), "ports": ports}
    return {**_meta("v1", "Service", plan, run, stage), "spec": spec}


def _budget(plan: Plan, run: str, stage: Stage) -> Manifest:
    """A drain of nodes takes one server at a time."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": _chosen(run, stage)}}
    return {**_meta("policy/v1", "PodDisruptionBudget", plan, run, stage), "spec": spec}


def _scaler(plan: Plan, run: str, stage: Stage, serve: Serve, wish: Autoscale) -> Manifest:
    target = {"type": "Utilization", "averageUtilization": wish.cpu}
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": names.service(run, stage.name)},
        "minReplicas": serve.replicas,
        "maxReplicas": wish.most,
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
    }
    return {**_meta("autoscaling/v2", "HorizontalPodAutoscaler", plan, run, stage), "spec": spec}


def _spread(run: str, stage: Stage) -> Manifest:
    """Over nodes, by preference: a server beside another one is better than none."""
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
