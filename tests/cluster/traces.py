"""What a cluster could leave on the machine, as sets to compare before and after."""

import os
from dataclasses import dataclass, fields
from pathlib import Path

from tests.cluster import children, machine, pins
from tests.cluster.debian import unpack
from tests.cluster.node import Tools
from tests.cluster.places import Places

_WATCHED = ("/etc", "/opt", "/run", "/run/netns", "/usr/libexec", "/usr/local", "/var/lib", "/var/log", "/var/run")


@dataclass(frozen=True)
class Traces:
    """Everything of the kinds that a cluster makes."""

    mounts: frozenset[str]
    links: frozenset[str]
    rules: frozenset[str]
    groups: frozenset[str]
    files: frozenset[str]
    processes: frozenset[str]

    def beyond(self, before: "Traces") -> dict[str, list[str]]:
        """What is here and was not there before."""
        new = {field.name: sorted(getattr(self, field.name) - getattr(before, field.name)) for field in fields(self)}
        return {kind: found for kind, found in new.items() if found}


def traces(places: Places) -> Traces:
    """As the machine sees them now; processes only as far as they belong to the cluster."""
    tools = Tools(unpack(pins.DEBIAN_TOOLS, "tools"))
    links = children.run("ip", "-brief", "link").stdout
    return Traces(
        mounts=frozenset(line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        links=frozenset(line.split()[0].partition("@")[0] for line in links.splitlines()),
        rules=frozenset(_rules(tools)),
        groups=frozenset(
            str(group) for hierarchy in machine.hierarchies() for group in hierarchy.glob("longboat-cluster-*")
        ),
        files=frozenset(os.path.join(top, name) for top in _WATCHED if os.path.isdir(top) for name in os.listdir(top)),
        processes=frozenset(_processes(places)),
    )


def _rules(tools: Tools) -> list[str]:
    found: list[str] = []
    for command in ("iptables-save", "ip6tables-save"):
        done = children.run(command, check=False, env=os.environ | tools.environment)
        found += [line for line in done.stdout.splitlines() if line.startswith("-A")]
    return found


def _processes(places: Places) -> list[str]:
    """Those that name the cluster's directory, or are in its control groups."""
    found = []
    state = machine.State.load(places)
    group = f"/{state.cgroup}/" if state else "/longboat-cluster-of-nobody/"
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(places.root) in command or group in (process / "cgroup").read_text():
                found.append(f"{process.name} {command[:120]}")
        except OSError:
            continue
    return found
