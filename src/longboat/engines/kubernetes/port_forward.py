"""Forwards a port of this machine to one in a pod, through the API server: how a ClusterIP is reached from outside.

Each connection uses a pod that is ready at that moment, so a replaced server breaks only its own connections. Only this
machine can use the port. The protocol is Kubernetes' port-forward over a WebSocket: channel 0 carries data, channel 1
errors; the first message of each is the port's number.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Self

from longboat.engines.kubernetes.cluster import Cluster
from longboat.engines.kubernetes.pod_exec import ExecChannel
from longboat.runtime.errors import LongboatError
from longboat.runtime.kube_client.api import ApiError, Manifest

DATA, ERROR = 0, 1
PIECE = 1 << 16


class PortForward:
    """Loopback ports that forward to pods of a run, until it is closed."""

    def __init__(self, cluster: Cluster, selector: str, ports: Mapping[int, int], say: Callable[[str], None]) -> None:
        """selector: of the pods. ports: port of the pod -> port of this machine, 0 for any free one."""
        self._cluster, self._say, self._selector = cluster, say, selector
        self._listeners: list[socket.socket] = []
        self._shown = ""
        self.ports: dict[int, int] = {}
        for remote, local in ports.items():
            self.ports[remote] = self._open(remote, local)

    def _open(self, remote: int, local: int) -> int:
        try:
            listener = socket.create_server(("127.0.0.1", local))
        except OSError as error:
            self.close()
            raise LongboatError(
                f"cannot listen on port {local} of this machine: {error.strerror}", "use --port 0 to pick a free port"
            ) from None
        self._listeners.append(listener)
        threading.Thread(target=self._accept, args=(listener, remote), daemon=True).start()
        return int(listener.getsockname()[1])

    def _accept(self, listener: socket.socket, remote: int) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client, remote), daemon=True).start()

    def _serve(self, client: socket.socket, remote: int) -> None:
        with client:
            try:
                channel = self._connect(remote)
            except (LongboatError, ApiError, OSError) as error:
                self._warn(f"cannot reach a server: {getattr(error, 'message', error)}")
                return
            with channel:
                threading.Thread(target=_send, args=(client, channel), daemon=True).start()
                with contextlib.suppress(OSError):
                    self._receive(client, channel)

    def _connect(self, remote: int) -> ExecChannel:
        pods = [pod for pod in self._cluster.api.list("Pod", self._selector) if ready(pod)]
        if not pods:
            raise LongboatError("no server is ready")
        # Spread connections over the pods.
        pod = pods[threading.get_ident() % len(pods)]
        path = f"{self._cluster.api.path('Pod', pod['metadata']['name'])}/portforward?ports={remote}"
        return ExecChannel(self._cluster.api, path)

    def _receive(self, client: socket.socket, channel: ExecChannel) -> None:
        named: set[int] = set()
        while True:
            number, data = channel.message()
            if number not in named:
                named.add(number)  # the port's number
            elif number == ERROR:
                self._warn(data.decode("utf-8", "replace"))
                return
            else:
                client.sendall(data)

    def _warn(self, text: str) -> None:
        if text != self._shown:
            self._shown = text
            self._say(f"warning: {text}")

    def close(self) -> None:
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _send(client: socket.socket, channel: ExecChannel) -> None:
    with contextlib.suppress(OSError, ValueError):
        while data := client.recv(PIECE):
            channel.send(data, DATA)
    channel.close()


def ready(pod: Manifest) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return not pod["metadata"].get("deletionTimestamp") and any(
        each.get("type") == "Ready" and each.get("status") == "True" for each in conditions
    )
