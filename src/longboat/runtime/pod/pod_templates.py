"""The pod of a seat, from the template of its role on the root ConfigMap."""

from __future__ import annotations

import copy
import os
from typing import List, Sequence

from longboat.runtime import debug_log
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import Manifest
from longboat.runtime.seat import Seat

_LETTERS = "bcdfghjkmnpqrstvwxz2456789"


def host_of(seat: Seat) -> str:
    """A seat's host name under the run's headless Service: the same for every pod of the seat."""
    return f"{seat.stage}-{seat.rank_name}"


def seats_per_pod(template: Manifest) -> int:
    """Number of seats in a pod."""
    for container in template["spec"]["containers"]:
        for variable in container.get("env") or () if container["name"] == names.CONTAINER else ():
            if variable["name"] == "LONGBOAT_AGENT_CREW":
                return int(variable["value"])
    return 1


def first_of(seat: Seat, size: int) -> Seat:
    """The seat that a pod with `size` seats is named after."""
    return seat._replace(rank=seat.rank - seat.rank % size)


def all_of(first: Seat, size: int) -> List[Seat]:
    return [first._replace(rank=first.rank + number) for number in range(size)]


def new_name(run: str, seat: Seat) -> str:
    """A name that no pod of the seat has had."""
    return f"{run}-{host_of(seat)}-" + "".join(_LETTERS[byte % len(_LETTERS)] for byte in os.urandom(5))


def owner(root: Manifest) -> Manifest:
    """The root ConfigMap as the owner of an object: deleting it deletes the object."""
    meta = root["metadata"]
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": meta["name"], "uid": meta["uid"]}


def pod(template: Manifest, name: str, seat: Seat, root: Manifest, driver: str, ports: Sequence[int]) -> Manifest:
    """The manifest of a seat's pod. driver: the driver's stable address. seat: the first, if the pod has several."""
    manifest: Manifest = copy.deepcopy(template)
    meta, spec = manifest["metadata"], manifest["spec"]
    meta["name"] = name
    meta["ownerReferences"] = [owner(root)]
    meta["labels"][names.RANK_LABEL] = str(seat.rank)
    spec["hostname"] = host_of(seat)
    variables = {
        "LONGBOAT_AGENT_SEAT": seat.name,
        "LONGBOAT_AGENT_NAME": name,
        "LONGBOAT_AGENT_DRIVER": f"{driver}:{names.PORT}",
        "LONGBOAT_AGENT_DEPOT": f"{driver}:{names.DEPOT_PORT}",
        "LONGBOAT_AGENT_PORTS": ",".join(map(str, ports)),
    }
    container = next(each for each in spec["containers"] if each["name"] == names.CONTAINER)
    if any(each["name"] == "LONGBOAT_AGENT_HOST" and "value" in each for each in container["env"]):
        variables["LONGBOAT_AGENT_HOST"] = f"{host_of(seat)}.{spec['subdomain']}"
    for variable in container["env"]:
        if variable["name"] in variables:
            variable["value"] = variables[variable["name"]]
    pass_on_log_level(container, root)
    return manifest


def pass_on_log_level(container: Manifest, root: Manifest) -> None:
    """Add the variable that turns on the debug log if it is on in this run; the job's own value wins."""
    level = names.log_level(root)
    if level and all(variable["name"] != debug_log.VARIABLE for variable in container["env"]):
        container["env"].append({"name": debug_log.VARIABLE, "value": level})


def seat_of(labels: object) -> Seat:
    """The seat in a pod's labels; rank -1 if it is not a rank's pod."""
    if not isinstance(labels, dict) or not str(labels.get(names.RANK_LABEL, "")).isdigit():
        return Seat("", "", -1)
    return Seat(str(labels.get(names.STAGE_LABEL)), str(labels.get(names.ROLE_LABEL)), int(labels[names.RANK_LABEL]))
