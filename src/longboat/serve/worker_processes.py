"""Runs the server as one process, or as several on one port under a parent that restarts them.

Every process opens the port itself (SO_REUSEPORT), so the kernel distributes connections. The parent only holds the
ports and starts and stops the processes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable

from longboat.runtime.agent import syscalls
from longboat.runtime.errors import FAILED, INTERRUPTED, OK, LongboatError
from longboat.runtime.light_dataclasses import dataclass, replace
from longboat.serve import metrics
from longboat.serve.settings import ServerSettings

BREATHER = 1.0
"""Seconds before a process that exited soon after its start is restarted."""


@dataclass(frozen=True)
class ServerReady:
    """Addresses and models of a server that is ready."""

    port: int
    grpc_port: int
    models: tuple[str, ...]
    seconds: float


def bind(host: str, port: int, shared: bool) -> socket.socket:
    """A bound socket, not listening yet. LongboatError if the port is not available.

    `::` means every address, IPv4 included, even if the kernel has no IPv6."""
    if host == "::" and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise LongboatError(f"--host {host}: {error.strerror or error}", "use an address of this machine") from None
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if host == "::":
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if shared:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        opened.bind(address)
    except OSError as error:
        opened.close()
        if error.errno == errno.EADDRINUSE:
            raise LongboatError(
                f"port {port} on {host} is already in use",
                "use `--port 0 --grpc-port 0` to pick free ports",
            ) from None
        hint = (
            "ports below 1024 need root or CAP_NET_BIND_SERVICE"
            if error.errno == errno.EACCES
            else "set --host to an address of this machine"
        )
        raise LongboatError(f"cannot listen on {host}:{port}: {error.strerror}", hint) from None
    return opened


def serve(settings: ServerSettings, ready: Callable[[ServerReady], None], tell: Callable[[str], None]) -> int:
    """Serve until stopped. Returns the exit code. `ready` is called once, when all processes are ready."""
    _more_files()
    began = time.monotonic()
    held = []
    http = bind(settings.host, settings.port, settings.workers > 1)
    held.append(http)
    settings = replace(settings, port=http.getsockname()[1])
    try:
        if settings.grpc_port >= 0:
            # gRPC opens its port itself; this bind checks that the port is free.
            grpc = bind(settings.host, settings.grpc_port, settings.workers > 1)
            settings = replace(settings, grpc_port=grpc.getsockname()[1])
            if settings.workers > 1:
                held.append(grpc)
            else:
                grpc.close()
        if settings.workers > 1:
            return _Parent(settings, http, ready, tell, began).run()

        def first(names: tuple[str, ...]) -> None:
            ready(ServerReady(settings.port, settings.grpc_port, names, time.monotonic() - began))

        asked = _one(settings, http, metrics.SharedMetrics(1), 0, tell, first)
        return INTERRUPTED if asked == signal.SIGINT else OK
    finally:
        for each in held:
            each.close()


def _one(
    settings: ServerSettings,
    listening: socket.socket,
    slots: metrics.SharedMetrics,
    index: int,
    tell: Callable[[str], None],
    ready: Callable[[tuple[str, ...]], None],
) -> int:
    """Serve in this process. Returns the signal that stopped it."""
    from longboat.serve.server import ModelServer, described, start_loop

    server = ModelServer(settings, listening, slots, index, tell)

    def up(server: ModelServer) -> None:
        ready(tuple(described(model) for model in server.models.by_name.values()))

    start_loop(lambda: server.run(up))
    return server.asked


def _more_files() -> None:
    """Raise the limit of open files to the maximum."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@dataclass
class _Child:
    pid: int
    pipe: int
    born: float
    names: tuple[str, ...] = ()
    heard: bytes = b""


class _Parent:
    """Parent process: holds the ports and restarts children."""

    def __init__(
        self,
        settings: ServerSettings,
        http: socket.socket,
        ready: Callable[[ServerReady], None],
        tell: Callable[[str], None],
        began: float,
    ) -> None:
        self._settings, self._http, self._ready, self._tell, self._began = settings, http, ready, tell, began
        self._slots = metrics.SharedMetrics(settings.workers)
        self._children: dict[int, _Child] = {}
        self._due: dict[int, float] = {}
        self._asked = 0
        self._hurry = False
        self._announced = False

    def run(self) -> int:
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        old = {
            number: signal.signal(number, self._signal) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
        }
        try:
            for index in range(self._settings.workers):
                self._start(index)
            return self._loop(read)
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in old.items():
                signal.signal(number, handler)
            for child in self._children.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child.pid, 0)

    def _signal(self, number: int, _frame: object) -> None:
        if number != signal.SIGCHLD:
            self._hurry = bool(self._asked)
            self._asked = number

    def _loop(self, wake: int) -> int:
        with selectors.DefaultSelector() as selector:
            selector.register(wake, selectors.EVENT_READ)
            stopping = 0.0
            while True:
                self._listen(selector, wake)
                pause = min(self._due.values(), default=time.monotonic() + 3600) - time.monotonic()
                for key, _ in selector.select(max(0.0, min(pause, 1.0 if stopping else pause))):
                    self._hear(key.fd, wake)
                if self._asked and not stopping:
                    stopping = time.monotonic()
                    self._due.clear()
                    for child in self._children.values():
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(child.pid, signal.SIGTERM)
                failed = self._reap(bool(stopping))
                if failed:
                    return FAILED
                if stopping and not self._children:
                    return INTERRUPTED if self._asked == signal.SIGINT else OK
                most = self._settings.linger + self._settings.drain + 5
                if stopping and (self._hurry or time.monotonic() - stopping > most):
                    return INTERRUPTED if self._hurry else FAILED
                for index, due in list(self._due.items()):
                    if due <= time.monotonic():
                        del self._due[index]
                        self._start(index)

    def _listen(self, selector: selectors.BaseSelector, wake: int) -> None:
        """Register the pipes of all children that are not ready yet."""
        pipes = {wake, *(child.pipe for child in self._children.values() if child.pipe >= 0)}
        known = {key.fd for key in selector.get_map().values()}
        for pipe in known - pipes:
            selector.unregister(pipe)
        for pipe in pipes - known:
            selector.register(pipe, selectors.EVENT_READ)

    def _hear(self, pipe: int, wake: int) -> None:
        data = os.read(pipe, 65536)
        if pipe == wake:
            return
        child = next(child for child in self._children.values() if child.pipe == pipe)
        child.heard += data
        if data:
            return
        os.close(pipe)
        child.pipe = -1
        child.names = tuple(child.heard.decode().splitlines())
        if not self._announced and all(each.names for each in self._children.values()):
            self._announced = True
            names = next(iter(self._children.values())).names
            self._ready(
                ServerReady(self._settings.port, self._settings.grpc_port, names, time.monotonic() - self._began)
            )

    def _reap(self, stopping: bool) -> bool:
        """Handle exited children. Returns True if the server cannot continue."""
        for index, child in list(self._children.items()):
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid == 0:
                continue
            if child.pipe >= 0:
                os.close(child.pipe)
            del self._children[index]
            if stopping:
                continue
            if not self._announced:
                return True  # it has printed the reason
            code = os.waitstatus_to_exitcode(status)
            how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            self._tell(f"warning: server process {pid} exited ({how}); starting another")
            young = time.monotonic() - child.born < 10
            self._due[index] = time.monotonic() + (BREATHER if young else 0.0)
        return False

    def _start(self, index: int) -> None:
        read, write = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid:
            os.close(write)
            self._children[index] = _Child(pid, read, time.monotonic())
            return
        code = FAILED
        try:
            os.close(read)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which stops this process
            if self._asked:  # the parent sent it before its handlers were removed here
                os._exit(OK)
            syscalls.die_with_parent(parent)  # otherwise a child of a killed parent would keep the port
            self._serve(index, write)
            code = OK
        except LongboatError as error:
            self._tell(f"error: {error.message}" + (f"\n\nhint: {error.hint}" if error.hint else ""))
        except BaseException as error:
            self._tell(f"error: server process {os.getpid()} failed: {type(error).__name__}: {error}")
        finally:
            os._exit(code)

    def _serve(self, index: int, write: int) -> None:
        """In the child: open a listening socket on the shared port."""

        def up(names: tuple[str, ...]) -> None:
            os.write(write, "\n".join(names).encode())
            os.close(write)

        own = bind(self._settings.host, self._settings.port, shared=True)
        self._http.close()
        tell = self._tell if index == 0 else lambda _: None
        _one(self._settings, own, self._slots, index, tell, up)
