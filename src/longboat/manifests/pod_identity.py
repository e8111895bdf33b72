"""User and group IDs of the ranks, their names inside a pod, and their service account. Pure.

An image does not know the user that a job sets, and its root file system is read-only, so the run provides /etc/passwd
and /etc/group.
"""

from __future__ import annotations

from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import Manifest
from longboat.runtime.plan import Plan, Security

USER = 1000
"""Default user ID of the ranks: an image's own user is often root."""
NAME = "longboat"
FILES = ("passwd", "group")
NOBODY = 65534


def user(security: Security) -> int:
    return USER if security.user is None else security.user


def group(security: Security) -> int:
    return user(security) if security.group is None else security.group


def fs_group(security: Security) -> int:
    return group(security) if security.fs_group is None else security.fs_group


def named(security: Security) -> bool:
    return bool(security.user_name or security.group_name)


def files(security: Security) -> dict[str, str]:
    """/etc/passwd and /etc/group with the job's names; {} if it sets none, to keep the image's files."""
    if not named(security):
        return {}
    name, home = security.user_name or NAME, f"{names.HOME}/home"
    users = [
        f"{name}:x:{user(security)}:{group(security)}:{name}:{home}:/bin/sh",
        "root:x:0:0:root:/root:/bin/sh",
        f"nobody:x:{NOBODY}:{NOBODY}:nobody:/nonexistent:/usr/sbin/nologin",
    ]
    groups = [
        f"{security.group_name or name}:x:{group(security)}:",
        f"volumes:x:{fs_group(security)}:",
        "root:x:0:",
        f"nogroup:x:{NOBODY}:",
    ]
    return {"passwd": _unique(users), "group": _unique(groups)}


def _unique(lines: list[str]) -> str:
    """The first line of each name and of each ID."""
    kept: list[list[str]] = []
    for line in lines:
        fields = line.split(":")
        if not any(fields[0] == other[0] or fields[2] == other[2] for other in kept):
            kept.append(fields)
    return "".join(":".join(fields) + "\n" for fields in kept)


def mounts(security: Security) -> list[Manifest]:
    """Mounts over the image's files, from the volume with the root object."""
    volume = {"name": "ship", "readOnly": True}
    return [{**volume, "mountPath": f"/etc/{file}", "subPath": file} for file in files(security)]


def account(plan: Plan, run: str) -> Manifest | None:
    """The service account with its annotations; None without annotations: then the account must exist."""
    security = plan.security
    if not security.annotations:
        return None
    meta = {
        "name": security.service_account,
        "labels": names.labels(run, plan.name, "account"),
        "annotations": dict(security.annotations),
    }
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}
