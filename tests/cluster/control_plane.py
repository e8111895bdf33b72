"""The command lines of etcd, the API server, the controller manager, the scheduler and the maker of volumes."""

from dataclasses import dataclass
from pathlib import Path

from tests.cluster import pins
from tests.cluster.machine import State
from tests.cluster.pki import Authority, kubeconfig, signing_keys
from tests.cluster.places import Places

ETCD, API, CONTROLLERS, SCHEDULER = "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"
PROVISIONER = "provisioner"


@dataclass(frozen=True)
class Credentials:
    """The certificates that more than one program needs."""

    authority: Authority
    front: Authority
    server: str

    def kubeconfig(self, path: Path, name: str, subject: str, names: tuple[str, ...] = ()) -> tuple[Path, Path]:
        """Somebody's certificate and key, and a kubeconfig of it."""
        pair = self.authority.issue(name, subject, names)
        kubeconfig(path, self.server, self.authority, pair, "longboat-test")
        return pair


def commands(
    places: Places, state: State, credentials: Credentials, programs: dict[str, Path], etcd: Path
) -> dict[str, list[str]]:
    """By name, in the order of starting; their certificates are made here."""
    pki = places.pki
    service_private, service_public = signing_keys(pki)
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
    addresses = [state.api_address, pins.SERVICE_API, "127.0.0.1"]
    server = credentials.authority.issue(
        "kube-apiserver",
        "/CN=kube-apiserver",
        (*(f"DNS:{name}" for name in [*names, "localhost"]), *(f"IP:{address}" for address in addresses)),
    )
    to_kubelets = credentials.authority.issue("to-kubelets", "/O=system:masters/CN=kube-apiserver-to-kubelets")
    front = credentials.front.issue("front-proxy", "/CN=front-proxy")
    credentials.kubeconfig(places.kubeconfig, "admin", "/O=system:masters/CN=admin")
    users = {}
    for program in (CONTROLLERS, SCHEDULER, PROVISIONER):
        users[program] = pki / f"{program}.kubeconfig"
        credentials.kubeconfig(users[program], program, f"/CN=system:{program}")
    return {
        ETCD: [
            str(etcd),
            f"--data-dir={places.etcd}",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--unsafe-no-fsync",  # the data lives no longer than the cluster
        ],
        API: [
            str(programs[API]),
            "--etcd-servers=http://127.0.0.1:2379",
            f"--advertise-address={state.api_address}",
            "--bind-address=0.0.0.0",
            "--secure-port=6443",
            f"--service-cluster-ip-range={pins.SERVICE_NETWORK}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            # Services behind the API are called at their pods, so the control plane needs no kube-proxy of its own.
            "--enable-aggregator-routing=true",
            f"--client-ca-file={credentials.authority.certificate}",
            f"--tls-cert-file={server[0]}",
            f"--tls-private-key-file={server[1]}",
            f"--kubelet-client-certificate={to_kubelets[0]}",
            f"--kubelet-client-key={to_kubelets[1]}",
            f"--kubelet-certificate-authority={credentials.authority.certificate}",
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={service_public}",
            f"--service-account-signing-key-file={service_private}",
            f"--requestheader-client-ca-file={credentials.front.certificate}",
            "--requestheader-allowed-names=front-proxy",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-username-headers=X-Remote-User",
            f"--proxy-client-cert-file={front[0]}",
            f"--proxy-client-key-file={front[1]}",
        ],
        CONTROLLERS: [
            str(programs[CONTROLLERS]),
            *_as_user(users[CONTROLLERS]),
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={service_private}",
            f"--root-ca-file={credentials.authority.certificate}",
            f"--cluster-signing-cert-file={credentials.authority.certificate}",
            f"--cluster-signing-key-file={credentials.authority.key}",
            "--allocate-node-cidrs=false",
            # By default it may ask 20 times a second, and spends its first five seconds on its own service accounts.
            "--kube-api-qps=200",
            "--kube-api-burst=400",
            f"--flex-volume-plugin-dir={places.root}/volume-plugins",
        ],
        SCHEDULER: [str(programs[SCHEDULER]), *_as_user(users[SCHEDULER])],
        PROVISIONER: [
            str(programs[PROVISIONER]),
            f"-kubeconfig={users[PROVISIONER]}",
            f"-root={places.volumes}",
        ],
    }


def make_credentials(places: Places, state: State) -> Credentials:
    server = f"https://{state.api_address}:6443"
    return Credentials(Authority(places.pki, "ca"), Authority(places.pki, "front-ca"), server)


def _as_user(config: Path) -> list[str]:
    which = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
    return [*(f"--{flag}={config}" for flag in which), "--leader-elect=false", "--bind-address=127.0.0.1"]
