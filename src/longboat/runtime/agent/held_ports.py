"""Ports that nobody else can take between being chosen and being used.

A port is held by a socket that is bound and never listens. The kernel gives such a port to no
one who asks for any free port, while a server that sets SO_REUSEADDR or SO_REUSEPORT, as
PyTorch, gRPC, and with it TensorFlow and JAX do, may bind it beside us.
"""

from __future__ import annotations

import socket
from typing import List, Sequence


class HeldPorts:
    def __init__(self, count: int, wanted: Sequence[int] = ()) -> None:
        self._sockets: List[socket.socket] = []
        for number in range(count):
            self._sockets.append(_hold(wanted[number] if number < len(wanted) else 0))

    @property
    def numbers(self) -> List[int]:
        return [held.getsockname()[1] for held in self._sockets]

    def close(self) -> None:
        for held in self._sockets:
            held.close()


def _hold(wanted: int) -> socket.socket:
    for port in (wanted, 0) if wanted else (0,):
        held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        held.set_inheritable(False)
        try:
            if port:
                _allow_sharing(held)
            held.bind(("", port))
            _allow_sharing(held)
            return held
        except OSError:
            held.close()
            if not port:
                raise
    raise AssertionError("unreachable")


def _allow_sharing(held: socket.socket) -> None:
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "SO_REUSEPORT"):
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
