"""What is free on each node: what it can give, less what its pods ask for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from windlass.kube.api import Manifest

GPU = "nvidia.com/gpu"
_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50}
_TENS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


@dataclass(frozen=True)
class Free:
    node: str
    cpu: float
    memory: float
    gpu: float
    usable: bool = True
    """Ready, and not closed to pods."""


def amount(text: object) -> float:
    """A quantity as Kubernetes writes it: 500m, 2, 4Gi, 1e3."""
    value = str(text or "0")
    for unit, factor in (*_UNITS.items(), *_TENS.items()):
        if value.endswith(unit):
            return float(value[: -len(unit)]) * factor
    return float(value)


def free(nodes: Iterable[Manifest], pods: Iterable[Manifest]) -> list[Free]:
    used: dict[str, dict[str, float]] = {}
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if node and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            held = used.setdefault(node, {})
            for container in pod["spec"]["containers"]:
                for name, value in _asked(container).items():
                    held[name] = held.get(name, 0.0) + amount(value)
    return [_free(node, used.get(node["metadata"]["name"], {})) for node in nodes]


def _free(node: Manifest, used: Mapping[str, float]) -> Free:
    gives = node["status"].get("allocatable") or {}
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions") or ())
    cpu, memory, gpu = (amount(gives.get(name)) - used.get(name, 0.0) for name in ("cpu", "memory", GPU))
    return Free(str(node["metadata"]["name"]), cpu, memory, gpu, ready and not node["spec"].get("unschedulable"))


def _asked(container: Manifest) -> dict[str, str]:
    resources = container.get("resources") or {}
    return {**(resources.get("limits") or {}), **(resources.get("requests") or {})}


def shortfall(nodes: Iterable[Free], cpu: float, memory: float, gpu: float) -> str:
    """The arithmetic of a pod that fits on no node; empty when some node has room for it."""
    usable = [node for node in nodes if node.usable]
    if not usable:
        return "no node is ready"
    if any(n.cpu >= cpu and n.memory >= memory and n.gpu >= gpu for n in usable):
        return ""
    told = []
    for name, asked, most in (
        ("cpu", cpu, max(n.cpu for n in usable)),
        ("memory (GiB)", memory / (1 << 30), max(n.memory for n in usable) / (1 << 30)),
        ("gpu", gpu, max(n.gpu for n in usable)),
    ):
        if asked > most:
            told.append(f"asked {asked:g} {name}, the most that a node has free is {most:.3g}")
    return "; ".join(told) or "each is free on some node, but on no node all of it"
