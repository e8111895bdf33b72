"""The run directory's door for agents without a disk in common: a process beside the driver that takes and gives files.

A process of its own, so that a large checkpoint never delays a heartbeat, and one thread for each
agent. It serves the parts of the run directory that agents share (`freight.PLACES`) and never the
journal, which is the driver's. From an agent whose place another one has taken it takes nothing (`claims`). It dies
with the driver.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import socketserver
import sys
import threading
from typing import Callable, Dict, List, Optional

from longboat.runtime import wire
from longboat.runtime.agent import syscalls
from longboat.runtime.agent.file_transfer import PLACES, FileStream, StaleIncarnation
from longboat.runtime.gang.gang_events import NO_INCARNATION, Incarnation
from longboat.runtime.pod.fencing import WriteFence

NEVER = (errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR)
"""How a path is refused that no second try would make room for."""
PAGE = 1000
"""Files that are told in one frame."""


def serve(run_dir: str, token: bytes, port: int, claims: Optional[WriteFence] = None) -> int:
    """Forks the depot; its process id."""
    parent = os.getpid()
    server = _Server(("", port), _Visit)
    server.run_dir, server.token, server.claims = run_dir, token, claims or WriteFence()

    def work() -> int:
        syscalls.die_with_parent(parent)
        server.serve_forever(poll_interval=3600)
        return 0

    pid = syscalls.fork(work)
    server.socket.close()
    return pid


class FileServerProcess:
    """The depot of a driver: without it no rank's end would ever be told, so the driver ends with it, and the next one
    brings both back."""

    def __init__(self, run_dir: str, token: bytes, port: int, claims: Optional[WriteFence] = None) -> None:
        self._pid = serve(run_dir, token, port, claims)
        self._closed = False
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._keeper.start()

    def _keep(self) -> None:
        os.waitpid(self._pid, 0)
        if not self._closed:
            sys.stderr.write("the driver leaves: its depot has ended\n")
            sys.stderr.flush()
            os._exit(1)

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._keeper.join()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 1024
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    run_dir = ""
    token = b""
    claims: WriteFence

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def handle_error(self, request: object, client_address: object) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, (OSError, wire.WireError)):
            sys.stderr.write(f"depot: {client_address}: {error!r}\n")


class _Visit(socketserver.BaseRequestHandler):
    server: _Server
    name = ""
    incarnation: Incarnation = NO_INCARNATION

    def handle(self) -> None:
        wire.lively(self.request)
        self.request.settimeout(30.0)
        stream = FileStream(self.request)
        self._greet(stream)
        self.request.settimeout(None)
        answers: Dict[str, Callable[[FileStream, wire.Message], None]] = {
            "claim": self._claim,
            "size": self._size,
            "put": self._put,
            "file": self._file,
            "get": self._get,
            "list": self._list,
        }
        while True:
            message = stream.receive()
            try:
                answers[message["is"]](stream, message)
            except StaleIncarnation as stale:
                stream.send("stale", why=str(stale))

    def _greet(self, stream: FileStream) -> None:
        ours = wire.nonce()
        stream.send("hello", nonce=ours)
        message = stream.receive()
        name, nonces = str(message.get("name")), f"{ours}{message.get('nonce')}"
        if message["is"] != "deposit" or not wire.proven(
            message.get("proof"), self.server.token, "agent", nonces, name
        ):
            raise wire.WireError("not an agent of this run")
        self.name, stream.limit = name, wire.LIMIT
        stream.send("welcome", proof=wire.proof(self.server.token, "driver", nonces, name))

    def _place(self, message: wire.Message) -> str:
        """Where a path is; nothing leads out of the parts that agents share."""
        path = os.path.normpath(str(message["path"]))
        if path.startswith(("/", "..")) or path.split("/")[0] not in PLACES:
            raise wire.WireError(f"{path} is not an agent's to touch")
        return os.path.join(self.server.run_dir, path)

    def _claim(self, stream: FileStream, message: wire.Message) -> None:
        generation, restart = message["incarnation"]
        self.server.claims.claim(self.name, (int(generation), int(restart)))
        self.incarnation = (int(generation), int(restart))
        stream.send("ok")

    def _size(self, stream: FileStream, message: wire.Message) -> None:
        try:
            size = os.path.getsize(self._place(message))
        except OSError:
            size = 0
        stream.send("size", n=size)

    def _put(self, stream: FileStream, message: wire.Message) -> None:
        path = self._place(message)
        data = stream.bytes(int(message["n"]))
        with self.server.claims.writing(self.name, self.incarnation, shared=False):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                at, done = int(message["at"]), 0
                while done < len(data):
                    done += os.pwrite(fd, data[done:], at + done)
            finally:
                os.close(fd)
        stream.send("ok")

    def _file(self, stream: FileStream, message: wire.Message) -> None:
        path, count = self._place(message), int(message["n"])
        aside = f"{path}.{os.getpid()}-{id(stream)}.part"
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            file = open(aside, "wb")
        except OSError as error:
            if error.errno not in NEVER:
                raise
            with open(os.devnull, "wb") as nowhere:
                stream.receive_file(nowhere, count)
            stream.send("never", why=error.strerror)
            return
        try:
            with file:
                stream.receive_file(file, count)
                file.flush()
                os.fsync(file.fileno())
            with self.server.claims.writing(self.name, self.incarnation, shared=True):
                os.replace(aside, path)
        except StaleIncarnation:
            os.unlink(aside)
            raise
        except OSError as error:
            if os.path.exists(aside):
                os.unlink(aside)
            if error.errno in NEVER:
                stream.send("never", why=error.strerror)
                return
            stream.send("no", why=f"{path}: {error.strerror}")
            raise
        stream.send("ok", at=os.stat(path).st_mtime_ns)

    def _get(self, stream: FileStream, message: wire.Message) -> None:
        try:
            with open(self._place(message), "rb") as file:
                found = os.fstat(file.fileno())
                stream.send("file", n=found.st_size, at=found.st_mtime_ns)
                stream.send_file(file, found.st_size)
        except FileNotFoundError:
            stream.send("none")

    def _list(self, stream: FileStream, message: wire.Message) -> None:
        """Page by page: a tree may have more files than one frame has room for."""
        page: List[List[object]] = []
        for folder, folders, names in os.walk(self._place(message)):
            folders.sort()
            for name in sorted(names):
                path = os.path.join(folder, name)
                try:
                    found = os.stat(path)
                except FileNotFoundError:
                    continue
                if not name.endswith(".part"):
                    page.append([os.path.relpath(path, self.server.run_dir), found.st_size, found.st_mtime_ns])
                if len(page) == PAGE:
                    stream.send("list", files=page, more=True)
                    page = []
        stream.send("list", files=page, more=False)
