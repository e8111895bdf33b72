"""Reserved ports: no other process gets them between choosing and using them.

A port is held by a socket that is bound and never listens. The kernel does not hand out such a port as a
free one, but a server that sets SO_REUSEADDR or SO_REUSEPORT can still bind it: PyTorch and gRPC do, and
with gRPC TensorFlow and JAX.
"""

from __future__ import annotations

import socket
from typing import List, Sequence


class HeldPorts:
    """Ports held until `close`; the wanted ones if they are free."""

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
