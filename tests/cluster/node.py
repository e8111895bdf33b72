"""One node: a network namespace of the box with a container runtime, a kubelet and a kube-proxy of its own.

All nodes see one kernel and one file system, so a path of the machine is the same on each of them.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import machine, pins
from tests.cluster.box import Box
from tests.cluster.control_plane import Credentials
from tests.cluster.machine import State
from tests.cluster.places import Places


@dataclass(frozen=True)
class Tools:
    """The unpacked Debian packages."""

    root: Path

    @property
    def etcd(self) -> Path:
        return self.root / "usr/bin/etcd"

    @property
    def plugins(self) -> Path:
        return self.root / "usr/lib/cni"

    @property
    def environment(self) -> dict[str, str]:
        """For programs that start others: containerd finds runc, kube-proxy finds iptables."""
        libraries = [self.root / "usr/lib/x86_64-linux-gnu", self.root / "lib/x86_64-linux-gnu"]
        return {
            "PATH": f"{self.root}/usr/sbin:{self.root}/usr/bin:{self.root}/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
            "XTABLES_LIBDIR": f"{libraries[0]}/xtables",
            "HOME": "/",
        }


@dataclass(frozen=True)
class Node:
    """A node by its place in the list of nodes."""

    places: Places
    state: State
    index: int

    @property
    def name(self) -> str:
        return pins.NODES[self.index]

    @property
    def address(self) -> str:
        return self.state.node_address(self.index)

    @property
    def pods(self) -> str:
        return f"10.88.{self.index}.0/24"

    @property
    def directory(self) -> Path:
        return self.places.node(self.name)

    @property
    def runtime_socket(self) -> str:
        return f"/run/{self.name}/containerd.sock"

    def program(self, program: str) -> str:
        return f"{self.name}-{program}"

    def inside(self) -> list[str]:
        """The beginning of a command line that runs the rest in the node's network and control group."""
        return [*machine.enter_group(self.state, self.name), "nsenter", f"--net=/run/netns/{self.name}", "--"]

    def connect(self, box: Box, tools: Tools) -> None:
        """Plug the node into the box's bridge; pods reach the machine under the node's address."""
        port = f"to-{self.name}"
        script = [f"ip netns add {self.name}", f"ip link add {port} type veth peer name eth0 netns {self.name}"]
        script += [f"ip link set {port} master bridge up", f"ip route replace {self.pods} via {self.address}"]
        script += [
            f"ip -n {self.name} {what}"
            for what in (
                "link set lo up",
                f"address add {self.address}/24 dev eth0",
                "link set eth0 up",
                f"route add default via {self.state.api_address}",
                *(
                    f"route add 10.88.{other}.0/24 via {self.state.node_address(other)}"
                    for other in range(len(pins.NODES))
                    if other != self.index
                ),
            )
        ]
        box.run("sh", "-ec", "\n".join(script))
        masquerade = f"iptables -t nat -A POSTROUTING -s {self.pods} ! -d {pins.POD_NETWORK} -o eth0 -j MASQUERADE"
        within = ["echo 1 > /proc/sys/net/ipv4/ip_forward", masquerade]
        # Packets between pods of one node must pass kube-proxy's rules too.
        within += ["[ ! -e /proc/sys/net/bridge ] || echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables"]
        command = ["nsenter", f"--net=/run/netns/{self.name}", "sh", "-ec", "\n".join(within)]
        box.run(*command, env=tools.environment)

    def set_link(self, box: Box, up: bool) -> None:
        """Pull or push in the node's only cable."""
        box.run("ip", "link", "set", f"to-{self.name}", "up" if up else "down")

    def commands(self, credentials: Credentials, programs: dict[str, Path], tools: Tools) -> dict[str, list[str]]:
        """By name, in the order of starting; writes what they read."""
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "cni").mkdir(exist_ok=True)
        names = (f"DNS:{self.name}", f"IP:{self.address}")
        to_api = self.directory / "kubelet.kubeconfig"
        pair = credentials.kubeconfig(to_api, self.name, f"/O=system:nodes/CN=system:node:{self.name}", names)
        proxy_to_api = self.directory / "kube-proxy.kubeconfig"
        credentials.kubeconfig(proxy_to_api, f"{self.name}-proxy", "/CN=system:kube-proxy")
        containerd = self._write("containerd.toml", self._containerd(tools))
        self._write("cni/10-bridge.conflist", json.dumps(self._cni(), indent=1))
        self._write("resolv.conf", "nameserver 127.0.0.1\n")
        kubelet = self._write("kubelet.json", json.dumps(self._kubelet(credentials, pair), indent=1))
        proxy = self._write("kube-proxy.json", json.dumps(self._kube_proxy(proxy_to_api), indent=1))
        inside = self.inside()
        return {
            self.program("containerd"): [*inside, "containerd", "--config", str(containerd)],
            self.program("kubelet"): [
                *inside,
                str(programs["kubelet"]),
                f"--config={kubelet}",
                f"--kubeconfig={to_api}",
                f"--hostname-override={self.name}",
                f"--node-ip={self.address}",
                f"--root-dir={self.directory}/kubelet",
                f"--cert-dir={self.directory}/kubelet/pki",
            ],
            self.program("kube-proxy"): [*inside, str(programs["kube-proxy"]), f"--config={proxy}"],
        }

    def _write(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.write_text(text)
        return path

    def _containerd(self, tools: Tools) -> str:
        return containerd_config(
            self.directory / "containerd",
            f"/run/{self.name}",
            f'bin_dir = "{tools.plugins}"\nconf_dir = "{self.directory}/cni"',
        )

    def _cni(self) -> dict[str, object]:
        addresses = {
            "type": "host-local",
            "dataDir": f"{self.directory}/addresses",
            "ranges": [[{"subnet": self.pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "hairpinMode": True, "ipam": addresses}
        return {
            "cniVersion": "0.4.0",
            "name": "pods",
            "plugins": [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}],
        }

    def _kubelet(self, credentials: Credentials, pair: tuple[Path, Path]) -> dict[str, object]:
        certificate, key = pair
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "port": 10250,
            "readOnlyPort": 0,
            "healthzBindAddress": self.address,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(credentials.authority.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(certificate),
            "tlsPrivateKeyFile": str(key),
            "containerRuntimeEndpoint": f"unix://{self.runtime_socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.state.cgroup}/{self.name}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "clusterDNS": [pins.SERVICE_DNS],
            "clusterDomain": "cluster.local",
            "resolvConf": f"{self.directory}/resolv.conf",
            "podLogsDir": f"{self.directory}/pod-logs",
            "volumePluginDir": f"{self.directory}/volume-plugins",
            # The disk is the machine's: its filling up is not the node's affair.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "syncFrequency": "5s",
            "serializeImagePulls": False,
            "oomScoreAdj": 0,
        }

    def _kube_proxy(self, to_api: Path) -> dict[str, object]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "clusterCIDR": pins.POD_NETWORK,
            "clientConnection": {"kubeconfig": str(to_api)},
            "hostnameOverride": self.name,
            "bindAddress": "0.0.0.0",
            "healthzBindAddress": f"{self.address}:10256",
            "metricsBindAddress": "127.0.0.1:10249",
            # Zero: leave the machine's own limits alone.
            "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            "oomScoreAdj": 0,
        }


def containerd_config(root: Path, run: str, cni: str) -> str:
    """containerd keeps images below `root` and its socket and running things below `run`."""
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""\
version = 2
root = "{root}"
state = "{run}/containerd"
[grpc]
address = "{run}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "{root}/opt"
[{cri}]
sandbox_image = "{pins.image("pause")}"
restrict_oom_score_adj = {str(not _may_raise_limits()).lower()}
disable_tcp_service = true
[{cri}.containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"
[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[{cri}.containerd.runtimes.runc.options]
SystemdCgroup = false
[{cri}.cni]
{cni}
"""


def _may_raise_limits() -> bool:
    """CAP_SYS_RESOURCE, which some machines keep from root."""
    effective = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    return os.geteuid() == 0 and bool(int(effective.split()[1], 16) >> 24 & 1)
