"""What is free on each node: what it can give, less what its pods ask for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from longboat.runtime.kube_client.api import Manifest
from longboat.runtime.kube_client.quota import amount
from longboat.runtime.light_dataclasses import dataclass

GPU = "nvidia.com/gpu"
SHOWN = 8
"""Nodes that are listed one by one."""


@dataclass(frozen=True)
class NodeCapacity:
    node: str
    cpu: float
    memory: float
    gpu: float
    closed: str = ""
    """Why it takes no pods; empty: it does."""
    version: str = ""

    @property
    def usable(self) -> bool:
        return not self.closed


def free(nodes: Iterable[Manifest], pods: Iterable[Manifest]) -> list[NodeCapacity]:
    used: dict[str, dict[str, float]] = {}
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if node and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            held = used.setdefault(node, {})
            for container in pod["spec"]["containers"]:
                for name, value in _asked(container).items():
                    held[name] = held.get(name, 0.0) + amount(value)
    return [_free(node, used.get(node["metadata"]["name"], {})) for node in nodes]


def _free(node: Manifest, used: Mapping[str, float]) -> NodeCapacity:
    gives = node["status"].get("allocatable") or {}
    cpu, memory, gpu = (amount(gives.get(name)) - used.get(name, 0.0) for name in ("cpu", "memory", GPU))
    version = str((node["status"].get("nodeInfo") or {}).get("kubeletVersion", ""))
    return NodeCapacity(str(node["metadata"]["name"]), cpu, memory, gpu, _closed(node), version)


def _closed(node: Manifest) -> str:
    ready = next((c for c in node["status"].get("conditions") or () if c["type"] == "Ready"), {"status": "Unknown"})
    if ready["status"] != "True":
        return "not ready" + (f": {ready['message']}" if ready.get("message") else "")
    if node["spec"].get("unschedulable"):
        return "closed to pods (cordoned)"
    taints = [t for t in node["spec"].get("taints") or () if t.get("effect") in ("NoSchedule", "NoExecute")]
    return f"tainted {taints[0]['key']}" if taints else ""


def _asked(container: Manifest) -> dict[str, str]:
    resources = container.get("resources") or {}
    return {**(resources.get("limits") or {}), **(resources.get("requests") or {})}


def arithmetic(nodes: Iterable[NodeCapacity], cpu: float, memory: float, gpu: float) -> list[str]:
    """Why a pod fits on no node: what it lacks most, then each node; nothing when some node has room for it."""
    all_of_them = list(nodes)
    usable = [node for node in all_of_them if node.usable]
    if any(n.cpu >= cpu and n.memory >= memory and n.gpu >= gpu for n in usable):
        return []
    shortages = []
    for name, asked, free in (
        ("cpu", cpu, [n.cpu for n in usable]),
        ("memory (GiB)", memory / (1 << 30), [n.memory / (1 << 30) for n in usable]),
        ("gpu", gpu, [n.gpu for n in usable]),
    ):
        if asked > max(free, default=0.0):
            shortages.append(f"asked {asked:g} {name}, the most that a node has free is {max(free, default=0.0):.3g}")
    head = "; ".join(shortages) or "each is free on some node, but on no node all of it"
    lines = [head if usable else "no node takes pods", *map(_line, all_of_them[:SHOWN])]
    return [*lines, *([f"and {len(all_of_them) - SHOWN} more nodes"] if len(all_of_them) > SHOWN else [])]


def _line(node: NodeCapacity) -> str:
    gpus = f", {node.gpu:g} gpu" if node.gpu else ""
    closed = f" ({node.closed})" if node.closed else ""
    return f"{node.node}: free {node.cpu:.3g} cpu, {node.memory / (1 << 30):.3g} GiB memory{gpus}{closed}"
