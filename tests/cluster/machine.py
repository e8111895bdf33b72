"""The few things of a cluster that stand on the machine itself, outside the box: one link and control groups.

Each is written into the state file before it is made, under a name that nobody else uses, so that `down` can remove it
whenever and however `up` ended.
"""

import ctypes
import errno
import ipaddress
import json
import os
import signal
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from tests.cluster import children
from tests.cluster.errors import ClusterError
from tests.cluster.places import Places

_INOTIFY_INSTANCES = 36
"""Of one cluster: each kubelet holds six, the API server six, the controller manager five, other daemons one."""


@dataclass(frozen=True)
class State:
    """What `down` must know. `number` makes the names unique on the machine."""

    number: int
    claimed: bool = False
    ready: bool = False

    @property
    def network(self) -> str:
        return f"10.89.{self.number}.0/24"

    @property
    def link(self) -> str:
        return f"longboat{self.number}"

    @property
    def cgroup(self) -> str:
        return f"longboat-cluster-{self.number}"

    @property
    def machine_address(self) -> str:
        return f"10.89.{self.number}.254"

    @property
    def api_address(self) -> str:
        return f"10.89.{self.number}.1"

    def node_address(self, index: int) -> str:
        return f"10.89.{self.number}.{10 + index}"

    def save(self, places: Places) -> None:
        places.root.mkdir(parents=True, exist_ok=True)
        fresh = places.state.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self)))
        fresh.rename(places.state)

    @staticmethod
    def load(places: Places) -> "State | None":
        try:
            found = json.loads(places.state.read_text())
        except FileNotFoundError:
            return None
        known = {field.name for field in fields(State)}  # another version of this code may have written it
        return State(**{name: value for name, value in found.items() if name in known})


def claim(places: Places) -> State:
    """A number that no other cluster of this machine has; its control group is the claim."""
    taken = _routed()
    for number in range(100):
        state = State(number)
        if any(ipaddress.ip_network(state.network).overlaps(network) for network in taken):
            continue
        state.save(places)
        try:
            os.mkdir(hierarchies()[0] / state.cgroup)
        except FileExistsError:
            continue
        state = replace(state, claimed=True)
        state.save(places)
        return state
    raise ClusterError("no free network between 10.89.0.0 and 10.89.99.0 on this machine")


def check_room() -> None:
    """Say at once if the kernel has too few inotify instances left; else kubelets exit one by one, minutes later."""
    libc = ctypes.CDLL(None, use_errno=True)
    opened: list[int] = []
    try:
        for _ in range(_INOTIFY_INSTANCES):
            descriptor = libc.inotify_init1(os.O_CLOEXEC)
            if descriptor < 0 and ctypes.get_errno() == errno.EMFILE:
                limit = Path("/proc/sys/fs/inotify/max_user_instances").read_text().strip()
                raise ClusterError(
                    f"a cluster needs {_INOTIFY_INSTANCES} inotify instances, and fewer are left of {limit}",
                    "end another cluster, or raise the limit: sysctl fs.inotify.max_user_instances=512",
                )
            opened.append(descriptor)
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _routed() -> list[ipaddress.IPv4Network]:
    routes = json.loads(children.run("ip", "-j", "-4", "route").stdout)
    return [ipaddress.IPv4Network(route["dst"]) for route in routes if route["dst"] != "default"]


def furnish(state: State, box: int) -> None:
    """Make what the box needs of the machine; `box` is the pid of its first process."""
    children.run("ip", "link", "add", state.link, "type", "veth", "peer", "name", "machine", "netns", str(box))
    children.run("ip", "address", "add", f"{state.machine_address}/24", "dev", state.link)
    children.run("ip", "link", "set", state.link, "up")


def clear(state: State) -> None:
    """Remove it all; whatever is gone already is fine."""
    if state.claimed:
        children.run("ip", "link", "delete", state.link, check=False)
    for hierarchy in hierarchies():
        _remove_group(hierarchy / state.cgroup, recurse=state.claimed)


def hierarchies() -> list[Path]:
    """Where control groups are mounted: one directory (version 2), or one for each controller (version 1)."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    first = [Path(where) for _, where, kind, *_ in mounts if kind == "cgroup"]
    return sorted(set(first)) or [Path(where) for _, where, kind, *_ in mounts if kind == "cgroup2"]


def make_groups(state: State, nodes: tuple[str, ...]) -> None:
    """A control group for each node, with one below it for the node's daemons; kubelet makes those of the pods."""
    for hierarchy in hierarchies():
        for group in (state.cgroup, *(f"{state.cgroup}/{node}/system" for node in nodes)):
            directory = hierarchy
            for part in group.split("/"):
                _open_controllers(directory)
                directory /= part
                directory.mkdir(exist_ok=True)
                for setting in ("cpuset.cpus", "cpuset.mems"):
                    _inherit(directory, setting)


def _inherit(directory: Path, setting: str) -> None:
    """Version 1 starts a group with no processor at all."""
    own, above = directory / setting, directory.parent / setting
    if own.exists() and above.exists() and not own.read_text().strip():
        own.write_text(above.read_text())


def _open_controllers(directory: Path) -> None:
    """Version 2 hands a controller down only where it is asked to."""
    controllers = directory / "cgroup.controllers"
    if controllers.exists() and (directory / "cgroup.subtree_control").exists():
        for name in controllers.read_text().split():
            try:
                (directory / "cgroup.subtree_control").write_text(f"+{name}")
            except OSError:
                continue


def enter_group(state: State, node: str) -> list[str]:
    """The beginning of a command line that runs the rest in the group of the node's daemons."""
    groups = " ".join(str(hierarchy / state.cgroup / node / "system") for hierarchy in hierarchies())
    return ["sh", "-c", f'for group in {groups}; do echo $$ > $group/cgroup.procs; done; exec "$@"', "sh"]


def kill_group(state: State, node: str) -> None:
    """The node's power is cut: every process of it ends at once."""
    deadline = time.monotonic() + 120
    while pids := _members(hierarchies()[0] / state.cgroup / node):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            raise ClusterError(f"processes of {node} do not end: {pids}")
        time.sleep(0.02)


def _members(group: Path) -> list[int]:
    found: list[int] = []
    for top, _, _ in os.walk(group):
        try:
            found += [int(pid) for pid in Path(top, "cgroup.procs").read_text().split()]
        except OSError:
            continue
    return found


def _remove_group(group: Path, recurse: bool) -> None:
    deadline = time.monotonic() + 60
    while group.exists():
        below = [top for top, _, _ in os.walk(group, topdown=False)] if recurse else [str(group)]
        for top in below:
            try:
                os.rmdir(top)
            except OSError:
                continue
        if group.exists():
            if not recurse or time.monotonic() > deadline:
                return
            time.sleep(0.05)
