"""Address of a serving stage outside of the cluster."""

from __future__ import annotations

from longboat.engines.kubernetes.cluster import Cluster
from longboat.engines.kubernetes.port_forward import ready
from longboat.runtime.errors import LongboatError
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import ApiError, Manifest
from longboat.runtime.light_dataclasses import dataclass
from longboat.runtime.plan import Plan, Serve
from longboat.runtime.rank_env import bracketed


@dataclass(frozen=True)
class ServiceAddress:
    expose: str
    """ClusterIP, NodePort or LoadBalancer."""
    host: str = ""
    """Empty if there is no address outside of the cluster, or none yet."""
    rest: int = 0
    grpc: int = 0
    why: str = ""
    """Why the address is missing."""
    no_controller: bool = False
    """Nothing in the cluster seems to create load balancers."""

    def url(self, host: str = "") -> str:
        return f"http://{bracketed(host or self.host)}:{self.rest}"


def served(plan: Plan | None, run: str, wanted: str = "") -> tuple[str, Serve]:
    """The serving stage; LongboatError if the run has none, or has several and none was named."""
    stages = {stage.name: stage.serve for stage in (plan.stages if plan else ()) if stage.serve is not None}
    if wanted:
        stages = {name: serve for name, serve in stages.items() if name == wanted}
    if not stages:
        what = f"has no stage {wanted} that serves" if wanted else "serves nothing: it has no `serve:` stage"
        raise LongboatError(f"{run} {what}", f"longboat status {run}")
    if len(stages) > 1:
        raise LongboatError(f"{run} has several stages that serve", f"name one: --stage {' or '.join(stages)}")
    return next(iter(stages.items()))


def servers(run: str, stage: str) -> str:
    """Selects the pods of a stage that serves."""
    return f"{names.selector(run, names.SERVER)},{names.STAGE_LABEL}={stage}"


def board(cluster: Cluster, run: str) -> ServiceAddress:
    """Address of the run's TensorBoard; both ports are the same."""
    return _address(cluster, run, names.board(run), names.selector(run, names.BOARD), (names.BOARD, names.BOARD))


def find(cluster: Cluster, run: str, stage: str) -> ServiceAddress:
    """Current address of a stage; LongboatError if the Service does not exist."""
    return _address(cluster, run, names.service(run, stage), servers(run, stage), ("rest", "grpc"))


def _address(cluster: Cluster, run: str, name: str, selector: str, wanted: tuple[str, str]) -> ServiceAddress:
    try:
        service = cluster.api.find("Service", name)
    except ApiError as error:
        raise cluster.refusal(error) from None
    if service is None:
        raise LongboatError(f"the Service {name} does not exist", f"longboat status {run}")
    spec = service["spec"]
    ports = {port["name"]: port for port in spec["ports"]}
    expose = str(spec.get("type", "ClusterIP"))
    if expose == "NodePort":
        rest, grpc = (int(ports[each]["nodePort"]) for each in wanted)
        host = _node(cluster, selector)
        return ServiceAddress(expose, host, rest, grpc, "" if host else "no server is ready on any node")
    rest, grpc = (int(ports[each]["port"]) for each in wanted)
    if expose == "LoadBalancer":
        host = _balancer(service)
        why, no_controller = ("", False) if host else _why_none(cluster, name)
        return ServiceAddress(expose, host, rest, grpc, why, no_controller)
    return ServiceAddress(expose, "", rest, grpc)


def _node(cluster: Cluster, selector: str) -> str:
    """Address of a node with a server, from the pod's status: listing nodes may not be permitted."""
    pods = sorted(cluster.api.list("Pod", selector), key=lambda pod: not ready(pod))
    return next((str(pod["status"]["hostIP"]) for pod in pods if pod.get("status", {}).get("hostIP")), "")


def _balancer(service: Manifest) -> str:
    given = (service.get("status", {}).get("loadBalancer") or {}).get("ingress") or ()
    return next((str(each.get("ip") or each.get("hostname")) for each in given), "")


def _why_none(cluster: Cluster, name: str) -> tuple[str, bool]:
    """Why a load balancer has no address, and whether nothing in the cluster creates load balancers."""
    try:
        events = cluster.api.list("Event", fields=f"involvedObject.name={name},involvedObject.kind=Service")
    except ApiError:
        events = []
    warnings = [str(event.get("message")) for event in events if event.get("type") == "Warning"]
    if warnings:
        return f"its controller says: {warnings[-1]}", False
    if events:
        return f"it is being created: {events[-1].get('message')}", False
    why = "nothing in this cluster seems to create load balancers: the Service has no event (try `expose: NodePort`)"
    return why, True
