"""A right that somebody lacks, as the API server says it, and what an admin types to give it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional

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
    """Empty: the right is one of the whole cluster."""

    @property
    def rule(self) -> str:
        """As it stands in a Role."""
        return f'{{apiGroups: ["{self.group}"], resources: ["{self.resource}"], verbs: ["{self.verb}"]}}'

    @property
    def commands(self) -> List[str]:
        """What makes a Role with it and gives it to the one who lacks it."""
        kind, where = ("role", f" -n {self.namespace}") if self.namespace else ("clusterrole", "")
        name = f"longboat-{self.verb}-{self.resource.replace('/', '-')}"
        what = self.resource + (f".{self.group}" if self.group else "")
        if "/" in self.resource and self.group:  # kubectl wants the group before the part
            first, _, part = self.resource.partition("/")
            what = f"{first}.{self.group}/{part}"
        space, _, account = self.user.rpartition(":")
        whom = f"--user={self.user}"
        if space.startswith("system:serviceaccount:"):
            whom = f"--serviceaccount={space.rpartition(':')[2]}:{account}"
        return [
            f"kubectl create {kind} {name} --verb={self.verb} --resource={what}{where}",
            f"kubectl create {kind}binding {name} --{kind}={name} {whom}{where}",
        ]


def lacking(message: str) -> Optional[MissingRight]:
    """What the message of a 403 says is missing; None when it speaks of something else."""
    found = _LACKS.search(message)
    if found is None:
        return None
    told = found.groupdict()
    return MissingRight(told["user"], told["verb"], told["resource"], told["group"], told["namespace"] or "")
