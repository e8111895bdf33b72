"""TensorBoard for a run in the cluster: a Deployment and its Service. Pure.

Nothing in the run waits for it, and it stays until the run is removed. One container is TensorBoard; another one
downloads what ranks report and stages write. TensorBoard has no login, so it is reachable only with
`longboat url --board` unless the job exposes it.
"""

from __future__ import annotations

from longboat.manifests.pod_base import Container, image_of, own_variables, shared, spec_of, volume_of
from longboat.manifests.rank_pods import DRIVER as SMALL
from longboat.runtime.errors import LongboatError
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import Manifest
from longboat.runtime.plan import Board, Plan

FILES = "files"


def objects(plan: Plan, run: str, edition: str = "") -> list[Manifest]:
    """Deployment and Service; [] if the job has no `board`. edition: of the payload."""
    board = plan.board
    if board is None:
        return []
    image = board.image or image_of(plan)
    if not image:
        raise LongboatError(
            "board: no image; a cluster needs one",
            "set `board: {image: ...}` to one with TensorBoard",
        )
    selector = {names.RUN_LABEL: run, names.PART_LABEL: names.BOARD}
    deployment = _meta("apps/v1", "Deployment", plan, run)
    deployment["spec"] = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": selector},
        "template": {
            "metadata": {"labels": names.labels(run, plan.name, names.BOARD)},
            "spec": _pod(plan, run, board, image, edition),
        },
    }
    service = _meta("v1", "Service", plan, run)
    ports = [{"name": names.BOARD, "port": board.port, "targetPort": board.port}]
    service["spec"] = {"type": board.expose, "selector": selector, "ports": ports}
    return [deployment, service]


def warnings(plan: Plan) -> list[str]:
    if plan.board is None or plan.board.expose == "ClusterIP":
        return []
    return [f"board: TensorBoard has no login: anyone who can reach its {plan.board.expose} can see this run"]


def _pod(plan: Plan, run: str, board: Board, image: str, edition: str) -> Manifest:
    common = shared(plan)
    logs = f"{names.RUN}/board" if common is not None else names.EVENTS
    spec = spec_of(plan, run, Container(image, own_variables(plan.security), SMALL), edition)
    viewer = spec["containers"][0]
    viewer["name"] = names.BOARD
    viewer["command"] = ["python3", "-m", "tensorboard.main", "--logdir", logs, "--port", str(board.port)]
    viewer["command"] += ["--bind_all", "--load_fast", "false", "--reload_interval", "5"]
    viewer["resources"] = {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}}
    viewer["ports"] = [{"name": names.BOARD, "containerPort": board.port}]
    viewer["readinessProbe"] = {"httpGet": {"path": "/", "port": board.port}, "periodSeconds": 2, "timeoutSeconds": 5}
    spec["automountServiceAccountToken"] = False
    if common is not None:
        spec["volumes"].append({"name": "run", **volume_of(common)})
        run_mount = {"name": "run", "mountPath": names.RUN, "subPath": f"longboat/{run}", "readOnly": True}
        viewer["volumeMounts"].append(run_mount)
        return spec
    env: list[Manifest] = [
        *own_variables(plan.security),
        {"name": "LONGBOAT_DEPOT", "value": f"{names.driver(run)}:{names.DEPOT_PORT}"},
    ]
    main = Container(image_of(plan) or image, env, SMALL, ["board"])
    bringer = spec_of(plan, run, main, edition)["containers"][0]
    bringer["name"] = FILES
    bringer["volumeMounts"] += [
        {"name": "events", "mountPath": names.EVENTS},
        {"name": "token", "mountPath": names.TOKEN, "readOnly": True},
    ]
    viewer["volumeMounts"].append({"name": "events", "mountPath": names.EVENTS, "readOnly": True})
    spec["containers"].append(bringer)
    spec["volumes"] += [
        {"name": "events", "emptyDir": {}},
        {"name": "token", "secret": {"secretName": names.token(run), "defaultMode": 0o440}},
    ]
    return spec


def _meta(version: str, kind: str, plan: Plan, run: str) -> Manifest:
    meta = {"name": names.board(run), "labels": names.labels(run, plan.name, names.BOARD)}
    return {"apiVersion": version, "kind": kind, "metadata": meta}
