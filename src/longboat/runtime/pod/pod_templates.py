"""The pod of one seat, from the template that the root holds for its role."""

from __future__ import annotations

import copy
import os
from typing import List, Sequence, Tuple

from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import Manifest

Seat = Tuple[str, str, int]

_LETTERS = "bcdfghjkmnpqrstvwxz2456789"


def host_of(seat: Seat) -> str:
    """A seat's name under the run's headless Service: the same for every pod that takes the seat."""
    return f"{seat[0]}-{seat[1]}-{seat[2]}"


def crew(template: Manifest) -> int:
    """How many seats a pod has."""
    for container in template["spec"]["containers"]:
        for variable in container.get("env") or () if container["name"] == names.CONTAINER else ():
            if variable["name"] == "LONGBOAT_AGENT_CREW":
                return int(variable["value"])
    return 1


def first_of(seat: Seat, size: int) -> Seat:
    """The seat after which a pod of so many is named."""
    return seat[0], seat[1], seat[2] - seat[2] % size


def all_of(first: Seat, size: int) -> List[Seat]:
    return [(first[0], first[1], first[2] + number) for number in range(size)]


def new_name(run: str, seat: Seat) -> str:
    """A name that no pod of the seat ever had."""
    return f"{run}-{host_of(seat)}-" + "".join(_LETTERS[byte % len(_LETTERS)] for byte in os.urandom(5))


def owner(root: Manifest) -> Manifest:
    """The root, as the owner of an object: what it owns goes with it."""
    meta = root["metadata"]
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": meta["name"], "uid": meta["uid"]}


def pod(template: Manifest, name: str, seat: Seat, root: Manifest, driver: str, ports: Sequence[int]) -> Manifest:
    """`driver`: the address at which the run's driver is always to be found. Of a pod with several seats, `seat` is
    the first."""
    stage, role, rank = seat
    found: Manifest = copy.deepcopy(template)
    meta, spec = found["metadata"], found["spec"]
    meta["name"] = name
    meta["ownerReferences"] = [owner(root)]
    meta["labels"][names.RANK_LABEL] = str(rank)
    spec["hostname"] = host_of(seat)
    told = {
        "LONGBOAT_AGENT_SEAT": f"{stage}/{role}-{rank}",
        "LONGBOAT_AGENT_NAME": name,
        "LONGBOAT_AGENT_DRIVER": f"{driver}:{names.PORT}",
        "LONGBOAT_AGENT_DEPOT": f"{driver}:{names.DEPOT_PORT}",
        "LONGBOAT_AGENT_PORTS": ",".join(map(str, ports)),
    }
    container = next(each for each in spec["containers"] if each["name"] == names.CONTAINER)
    if any(each["name"] == "LONGBOAT_AGENT_HOST" and "value" in each for each in container["env"]):
        told["LONGBOAT_AGENT_HOST"] = f"{host_of(seat)}.{spec['subdomain']}"
    for variable in container["env"]:
        if variable["name"] in told:
            variable["value"] = told[variable["name"]]
    return found


def seat_of(labels: object) -> Tuple[str, str, int]:
    """The seat that a pod's labels name; ("", "", -1) for what is no rank's pod."""
    if not isinstance(labels, dict) or not str(labels.get(names.RANK_LABEL, "")).isdigit():
        return "", "", -1
    return str(labels.get(names.STAGE_LABEL)), str(labels.get(names.ROLE_LABEL)), int(labels[names.RANK_LABEL])
