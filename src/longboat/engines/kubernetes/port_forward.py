"""A port of this machine that leads to one in a pod, through the API server: what reaches a ClusterIP from outside.

Each connection takes a pod that is ready at that moment, so a replaced server breaks none but those it had. Only this
machine can use the port. The protocol is the cluster's port-forward over a WebSocket: of channel 0 the data, of channel
1 what went wrong; the first message of each is the port's number.
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

DATA, WRONG = 0, 1
PIECE = 1 << 16


class PortForward:
    """Loopback ports that lead to pods of a run. Close it to close all of them."""

    def __init__(self, cluster: Cluster, selector: str, ports: Mapping[int, int], say: Callable[[str], None]) -> None:
        """selector: of the pods. ports: of them -> of this machine, 0 is any that is free."""
        self._cluster, self._say, self._selector = cluster, say, selector
        self._listening: list[socket.socket] = []
        self._said = ""
        self.ports: dict[int, int] = {}
        for there, here in ports.items():
            self.ports[there] = self._open(there, here)

    def _open(self, there: int, here: int) -> int:
        try:
            listening = socket.create_server(("127.0.0.1", here))
        except OSError as error:
            self.close()
            raise LongboatError(
                f"port {here} of this machine cannot be had: {error.strerror}", "choose another: --port, 0 is any"
            ) from None
        self._listening.append(listening)
        threading.Thread(target=self._accept, args=(listening, there), daemon=True).start()
        return int(listening.getsockname()[1])

    def _accept(self, listening: socket.socket, there: int) -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client, there), daemon=True).start()

    def _serve(self, client: socket.socket, there: int) -> None:
        with client:
            try:
                channel = self._reached(there)
            except (LongboatError, ApiError, OSError) as error:
                self._tell(f"no server could be reached: {getattr(error, 'message', error)}")
                return
            with channel:
                threading.Thread(target=_send, args=(client, channel), daemon=True).start()
                with contextlib.suppress(OSError):
                    self._receive(client, channel)

    def _reached(self, there: int) -> ExecChannel:
        pods = [pod for pod in self._cluster.api.list("Pod", self._selector) if ready(pod)]
        if not pods:
            raise LongboatError("no server is ready")
        # Not always the same one.
        pod = pods[threading.get_ident() % len(pods)]
        path = f"{self._cluster.api.path('Pod', pod['metadata']['name'])}/portforward?ports={there}"
        return ExecChannel(self._cluster.api, path)

    def _receive(self, client: socket.socket, channel: ExecChannel) -> None:
        named: set[int] = set()
        while True:
            number, data = channel.message()
            if number not in named:
                named.add(number)  # the port's number
            elif number == WRONG:
                self._tell(data.decode("utf-8", "replace"))
                return
            else:
                client.sendall(data)

    def _tell(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._say(f"warning: {text}")

    def close(self) -> None:
        for listening in self._listening:
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            listening.close()

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
