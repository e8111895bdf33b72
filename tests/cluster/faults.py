"""What can go wrong with a real cluster, done on purpose: lost nodes, cut cables, a control plane that is away."""

import signal
from collections.abc import Callable
from dataclasses import dataclass

from tests.cluster import control_plane, machine, store
from tests.cluster.cluster import Cluster


@dataclass(frozen=True)
class Faults:
    """Each fault has a cure; both may be asked for twice."""

    cluster: Cluster

    def node_stop(self, name: str) -> None:
        """The node's power is cut: its daemons and containers end at once, its address is silent."""
        node = self.cluster.node(name)
        node.set_link(self.cluster.box, up=False)
        machine.kill_group(node.state, node.name)

    def node_start(self, name: str) -> None:
        """The node boots again; what was on its disk is there."""
        node = self.cluster.node(name)
        node.set_link(self.cluster.box, up=True)
        self._start(node.program("containerd"))
        store.await_runtime(self.cluster.box, self.cluster.tools(), node.runtime_socket)
        self._start(node.program("kubelet"))
        self._start(node.program("kube-proxy"))

    def kubelet_stop(self, name: str) -> None:
        """Nobody looks after the node's pods any more, but they run on."""
        self.cluster.box.stop(self.cluster.node(name).program("kubelet"), signal.SIGKILL)

    def kubelet_start(self, name: str) -> None:
        self._start(self.cluster.node(name).program("kubelet"))

    def net_cut(self, name: str) -> None:
        """The node lives on, alone."""
        self.cluster.node(name).set_link(self.cluster.box, up=False)

    def net_heal(self, name: str) -> None:
        self.cluster.node(name).set_link(self.cluster.box, up=True)

    def api_stop(self) -> None:
        """Killed, so that no connection is closed with a word."""
        self.cluster.box.stop(control_plane.API, signal.SIGKILL)

    def api_start(self) -> None:
        """Returns when it is ready."""
        self._start(control_plane.API)
        self.cluster.await_api()

    def _start(self, program: str) -> None:
        if self.cluster.box.programs().get(program, 0) is not None:
            self.cluster.start_program(program)


ON_NODES: dict[str, Callable[[Faults, str], None]] = {
    "node-stop": Faults.node_stop,
    "node-start": Faults.node_start,
    "kubelet-stop": Faults.kubelet_stop,
    "kubelet-start": Faults.kubelet_start,
    "net-cut": Faults.net_cut,
    "net-heal": Faults.net_heal,
}
ON_API: dict[str, Callable[[Faults], None]] = {"api-stop": Faults.api_stop, "api-start": Faults.api_start}
