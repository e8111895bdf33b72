"""The missing right in the message of a 403, and the commands to grant it. Pure."""

from __future__ import annotations

import re
from typing import List, Optional

from longboat.runtime.light_dataclasses import dataclass

_LACKS = re.compile(
    r'User "(?P<user>[^"]+)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'( in the namespace "(?P<namespace>[^"]+)")?'
)


@dataclass(frozen=True)
class MissingRight:
    """A right that the cluster did not grant."""

    user: str
    verb: str
    resource: str
    group: str
    namespace: str
    """Empty: the right is cluster-wide."""

    @property
    def rule(self) -> str:
        """The rule for a Role."""
        return f'{{apiGroups: ["{self.group}"], resources: ["{self.resource}"], verbs: ["{self.verb}"]}}'

    @property
    def commands(self) -> List[str]:
        """kubectl commands that create a Role with the right and bind it to the user."""
        kind, where = ("role", f" -n {self.namespace}") if self.namespace else ("clusterrole", "")
        name = f"longboat-{self.verb}-{self.resource.replace('/', '-')}"
        what = self.resource + (f".{self.group}" if self.group else "")
        if "/" in self.resource and self.group:  # kubectl wants the group before the part
            first, _, part = self.resource.partition("/")
            what = f"{first}.{self.group}/{part}"
        space, _, account = self.user.rpartition(":")
        subject = f"--user={self.user}"
        if space.startswith("system:serviceaccount:"):
            subject = f"--serviceaccount={space.rpartition(':')[2]}:{account}"
        return [
            f"kubectl create {kind} {name} --verb={self.verb} --resource={what}{where}",
            f"kubectl create {kind}binding {name} --{kind}={name} {subject}{where}",
        ]


def lacking(message: str) -> Optional[MissingRight]:
    """The missing right in the message of a 403; None if it is about something else."""
    match = _LACKS.search(message)
    if match is None:
        return None
    return MissingRight(match["user"], match["verb"], match["resource"], match["group"], match["namespace"] or "")
