"""The way to an API server that only a proxy can reach: a kubeconfig's `proxy-url`.

The proxy is asked to connect (HTTP CONNECT) and passes on bytes that it cannot read. To a proxy that
is itself spoken to by TLS a pump stands in between, for Python cannot put one TLS socket into another.
"""

from __future__ import annotations

import base64
import select
import socket
import ssl
import threading
from collections.abc import Callable
from urllib.parse import SplitResult, unquote, urlsplit

from longboat.runtime.errors import LongboatError
from longboat.runtime.rank_env import bracketed

_MOST = 1 << 18
"""Bytes on their way in one direction before its source has to wait."""


def way(url: str, host: str, port: int) -> Callable[[float | None], socket.socket]:
    """Connects to the host through the proxy; LongboatError for a proxy of another kind."""
    proxy = urlsplit(url if "://" in url else f"http://{url}")
    if proxy.scheme not in ("http", "https") or not proxy.hostname:
        raise LongboatError(
            f"the kubeconfig's proxy-url {_shown(proxy)} is no http or https proxy",
            "ask whoever runs the cluster for an http proxy; socks is not spoken",
        )

    def connect(timeout: float | None) -> socket.socket:
        default = 443 if proxy.scheme == "https" else 80
        plain = socket.create_connection((proxy.hostname, proxy.port or default), timeout=timeout)
        try:
            if proxy.scheme == "https":
                secure = ssl.create_default_context().wrap_socket(plain, server_hostname=proxy.hostname)
                _ask(secure, proxy, host, port)
                return _pumped(secure, timeout)
            _ask(plain, proxy, host, port)
            return plain
        except BaseException:
            plain.close()
            raise

    return connect


def _ask(connection: socket.socket, proxy: SplitResult, host: str, port: int) -> None:
    place = f"{bracketed(host)}:{port}"
    lines = [f"CONNECT {place} HTTP/1.1", f"Host: {place}"]
    if proxy.username:
        login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(login.encode()).decode()}")
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):  # one at a time: what follows belongs to the server
        byte = connection.recv(1)
        if not byte or len(answer) > 65536:
            raise ConnectionError(f"the proxy {_shown(proxy)} closed the connection")
        answer += byte
    first = answer.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
    if len(first) < 2 or not first[1].startswith("2"):
        raise ConnectionError(f"the proxy {_shown(proxy)} answered {' '.join(first[1:]) or 'no HTTP'}")


def _shown(proxy: SplitResult) -> str:
    """Without its password."""
    return f"{proxy.scheme}://{proxy.netloc.rpartition('@')[2]}"


def _pumped(far: ssl.SSLSocket, timeout: float | None) -> socket.socket:
    """A plain socket whose bytes go through the encrypted one."""
    near, ours = socket.socketpair()
    near.settimeout(timeout)
    threading.Thread(target=_pump, args=(ours, far), name="proxy", daemon=True).start()
    return near


def _pump(near: socket.socket, far: ssl.SSLSocket) -> None:
    """Until one side is closed and all that came from it has been passed on."""
    out, back = bytearray(), bytearray()
    near.setblocking(False)
    far.setblocking(False)
    ends = [near, far]
    try:
        while True:
            readable = [each for each, waits in ((near, out), (far, back)) if len(waits) < _MOST and each in ends]
            writable = [each for each, waits in ((far, out), (near, back)) if waits]
            if not writable and len(ends) < 2:
                return
            if not far.pending():
                select.select(readable, writable, [])
            for source, waits in ((near, out), (far, back)):
                if source in readable and not _read(source, waits):
                    ends.remove(source)
            for target, waits in ((far, out), (near, back)):
                if waits:
                    del waits[: _write(target, waits)]
    except OSError:
        pass
    finally:
        near.close()
        far.close()


def _read(source: socket.socket, into: bytearray) -> bool:
    """False at its end."""
    try:
        data = source.recv(65536)
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return True
    into += data
    return bool(data)


def _write(target: socket.socket, data: bytearray) -> int:
    try:
        return target.send(bytes(data[:65536]))
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return 0
