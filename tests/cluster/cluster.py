"""The order in which a cluster is made, and how it is taken down again from any point of that order."""

import json
import os
import shutil
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.cluster import children, control_plane, debian, images, machine, pins, programs, store
from tests.cluster.box import Box
from tests.cluster.errors import ClusterError
from tests.cluster.machine import State
from tests.cluster.node import Node, Tools
from tests.cluster.places import Places, cache, home, locked

Say = Callable[[str], None]


@dataclass(frozen=True)
class Parts:
    """What a cluster is started from; all of it comes from the cache once it was made."""

    programs: dict[str, Path]
    tools: Tools
    archives: list[Path]


def build(say: Say, image_names: tuple[str, ...] = pins.IMAGES) -> Parts:
    """Make or find everything that needs no running cluster."""
    lacking = {package for command, package in pins.HOST_COMMANDS.items() if not shutil.which(command)}
    if lacking:
        raise ClusterError("commands are missing on this machine", f"apt-get install {' '.join(sorted(lacking))}")
    cache().mkdir(parents=True, exist_ok=True)
    # The compiler needs the processors for minutes; packages and wheels are fetched meanwhile.
    with children.SideBySide() as threads:
        compiled = threads.start(programs.build, say)
        unpacked = threads.start(debian.unpack, pins.DEBIAN_TOOLS, "tools")
        made = {
            name: threads.start(images.make, name, dict[str, Path]())
            for name in image_names
            if not images.needs_programs(name)
        }
    built, tools = compiled.result(), Tools(unpacked.result())
    archives = {name: each.result() for name, each in made.items()}
    archives |= {name: images.make(name, built) for name in image_names if images.needs_programs(name)}
    _link_kubectl(built["kubectl"])
    return Parts(built, tools, [archives[name] for name in image_names])


def _link_kubectl(built: Path) -> None:
    kubectl().parent.mkdir(parents=True, exist_ok=True)
    fresh = kubectl().with_suffix(f".{os.getpid()}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(built)
    fresh.rename(kubectl())


def kubectl() -> Path:
    """Where to find the built kubectl, whatever its version."""
    return home() / "bin/kubectl"


class Cluster:
    """One cluster by name. Several may run side by side."""

    def __init__(self, name: str, say: Say) -> None:
        self.places = Places(name)
        self.box = Box(self.places)
        self._say = say

    @property
    def failed_logs(self) -> Path:
        """What is kept of a start that failed."""
        return home() / "state" / f"{self.places.name}.failed-log"

    def is_up(self) -> bool:
        state = State.load(self.places)
        return state is not None and state.ready and self.box.lives()

    def up(self) -> None:
        """Bring it up; what is left of an interrupted start is cleared first."""
        if os.geteuid() != 0:
            raise ClusterError(
                "the test cluster needs root: network namespaces, mounts, control groups",
                "run it as root, or set KUBECONFIG to a cluster of yours: kind create cluster --config kind-config.yml",
            )
        with self._changing():
            if self.is_up():
                return
            self._clear()
            phase = Phases(self._say)
            parts = build(self._say)
            phase.done("parts")
            machine.check_room()
            state = machine.claim(self.places)
            try:
                self._start(state, parts, phase)
            except ClusterError as error:
                self._clear(keep_logs=True)
                raise ClusterError(str(error), error.hint or f"the logs are in {self.failed_logs}") from None
            except BaseException:
                # Ctrl-C, mostly. A kill leaves this to the next `up` or `down`.
                self._clear()
                raise

    def _start(self, state: State, parts: Parts, phase: "Phases") -> None:
        machine.make_groups(state, pins.NODES)
        self.box.start()
        machine.furnish(state, self.box.pid())
        nodes = [Node(self.places, state, index) for index in range(len(pins.NODES))]
        self._network(state, nodes, parts.tools)
        credentials = control_plane.make_credentials(self.places, state)
        commands = control_plane.commands(self.places, state, credentials, parts.programs, parts.tools.etcd)
        for node in nodes:
            commands |= node.commands(credentials, parts.programs, parts.tools)
        self._remember(commands, parts.tools)
        phase.done("box")
        with ThreadPoolExecutor(len(nodes) + 1) as pool:
            runtimes = pool.submit(self._runtimes, nodes, parts, pool)
            try:
                self._control_plane()
                phase.done("control plane")
                runtimes.result()
            except BaseException:
                self.box.end()  # else the other threads would finish their work first
                raise
        phase.done("images")
        for node in nodes:
            self.start_program(node.program("kubelet"))
            self.start_program(node.program("kube-proxy"))
        self._await_nodes(len(nodes))
        phase.done("nodes")
        self.kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=300s")
        phase.done("dns")
        replace(state, ready=True).save(self.places)
        phase.total()

    def _control_plane(self) -> None:
        for program in (control_plane.ETCD, control_plane.API):
            self.start_program(program)
        # The controller manager gives up if it comes before the API server has made its roles.
        self.await_api()
        self.kubectl("apply", "--server-side", "-f", str(pins.MANIFESTS / "base.yaml"))
        for program in (control_plane.CONTROLLERS, control_plane.SCHEDULER, control_plane.PROVISIONER):
            self.start_program(program)

    def node(self, name: str) -> Node:
        """A node by its name or number."""
        state = self._state()
        for index, node in enumerate(pins.NODES):
            if name in (node, str(index)):
                return Node(self.places, state, index)
        raise ClusterError(f"there is no node {name}", f"the nodes are {', '.join(pins.NODES)}")

    def nodes(self) -> list[Node]:
        return [self.node(name) for name in pins.NODES]

    def tools(self) -> Tools:
        """Those that the cluster was started with."""
        return Tools(Path(self._remembered()["tools"]))

    def load(self, archive: Path) -> None:
        """Give every node an image."""
        with ThreadPoolExecutor(len(pins.NODES)) as pool:
            list(pool.map(lambda node: store.load(self.box, self.tools(), node.runtime_socket, archive), self.nodes()))

    def images(self, node: Node) -> list[str]:
        """What a node has."""
        command = ("ctr", "--address", node.runtime_socket, "--namespace", "k8s.io", "images", "list", "--quiet")
        return self.box.run(*command, env=self.tools().environment).split()

    def down(self) -> bool:
        """Take it down and leave nothing; false if there was nothing."""
        with self._changing():
            return self._clear()

    def _clear(self, keep_logs: bool = False) -> bool:
        state = State.load(self.places)
        lived = self.box.lives()
        self.box.end()
        if state:
            machine.clear(state)
        found = lived or state is not None
        if keep_logs and self.places.logs.exists():
            shutil.rmtree(self.failed_logs, ignore_errors=True)
            self.places.logs.rename(self.failed_logs)
        shutil.rmtree(self.places.root, ignore_errors=True)
        self.places.box_lock.unlink(missing_ok=True)
        return found

    def _network(self, state: State, nodes: list[Node], tools: Tools) -> None:
        """The machine and all nodes on one bridge, which is the control plane's own address too."""
        lines = ["ip link add bridge type bridge", f"ip address add {state.api_address}/24 dev bridge"]
        lines += ["ip link set bridge up", "ip link set machine master bridge up"]
        self.box.run("sh", "-ec", "\n".join(lines))
        for node in nodes:
            node.connect(self.box, tools)

    def _runtimes(self, nodes: list[Node], parts: Parts, pool: ThreadPoolExecutor) -> None:
        images = store.prepare(self.box, parts.tools, parts.archives)
        list(pool.map(lambda node: self._runtime(node, parts.tools, images), nodes))

    def _runtime(self, node: Node, tools: Tools, images: Path) -> None:
        store.hand_out(images, node.directory / "containerd")
        self.start_program(node.program("containerd"))
        store.await_runtime(self.box, tools, node.runtime_socket)

    def _remember(self, commands: dict[str, list[str]], tools: Tools) -> None:
        text = json.dumps({"commands": commands, "environment": tools.environment, "tools": str(tools.root)}, indent=1)
        (self.places.root / "commands.json").write_text(text)

    def _remembered(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.places.root / "commands.json").read_text())
        except FileNotFoundError:
            raise ClusterError(f"the cluster {self.places.name} is not up", "make cluster-up") from None
        return found

    def _state(self) -> State:
        state = State.load(self.places)
        if state is None or not self.box.lives():
            raise ClusterError(f"the cluster {self.places.name} is not up", "make cluster-up")
        return state

    def start_program(self, name: str) -> None:
        remembered = self._remembered()
        self.box.spawn(name, remembered["commands"][name], remembered["environment"])

    def await_api(self, timeout: float = 300.0) -> None:
        """Until the API server says that it is ready."""
        state = self._state()
        context = ssl.create_default_context(cafile=str(self.places.pki / "ca.crt"))
        context.load_cert_chain(self.places.pki / "admin.crt", self.places.pki / "admin.key")
        # The user's proxy does not know the way to this address.
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        deadline = time.monotonic() + timeout
        while True:
            try:
                with opener.open(f"https://{state.api_address}:6443/readyz", timeout=5):
                    return
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ClusterError(f"the API server is not ready: {error}") from None
                time.sleep(0.1)

    def _await_nodes(self, count: int) -> None:
        deadline = time.monotonic() + 300
        while len(self.kubectl("get", "nodes", "-o", "name").split()) < count:
            if time.monotonic() > deadline:
                raise ClusterError("not all nodes came")
            time.sleep(0.2)
        self.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=300s")

    def kubectl(self, *arguments: str) -> str:
        done = children.run(kubectl(), f"--kubeconfig={self.places.kubeconfig}", *arguments, check=False)
        if done.returncode:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    @contextmanager
    def _changing(self) -> Iterator[None]:
        try:
            # What a command ran that was killed this moment ends just behind it, and holds its lock till then.
            with locked(self.places.command_lock, patience=60):
                yield
        except BlockingIOError:
            raise ClusterError(
                f"another command is changing the cluster {self.places.name}", "wait until it has ended"
            ) from None


class Phases:
    """Says how long each part of a start took."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._first = self._last = time.monotonic()

    def done(self, phase: str) -> None:
        now = time.monotonic()
        self._say(f"{phase:<14}{now - self._last:7.1f} s")
        self._last = now

    def total(self) -> None:
        self._say(f"{'up':<14}{time.monotonic() - self._first:7.1f} s")
