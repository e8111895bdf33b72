"""The file server next to the driver: stores and sends files of agents that do not share a disk with it.

It is a process of its own, so that a large checkpoint never delays a heartbeat, with one thread for each agent.
It serves the directories of the run that agents share (`file_transfer.PLACES`), never the journal, which only the
driver writes. It rejects writes of agents that were replaced (`fencing`). It dies with the driver.
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

from longboat.runtime import atomic_file, wire
from longboat.runtime.agent import syscalls
from longboat.runtime.agent.file_transfer import PLACES, FileStream, StaleIncarnation
from longboat.runtime.gang.gang_events import NO_INCARNATION, Incarnation
from longboat.runtime.pod.fencing import WriteFence

NEVER = (errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR)
"""Errors of a path that no retry can fix."""
PAGE = 1000
"""Files listed in one frame."""


def serve(run_dir: str, token: bytes, port: int, fence: Optional[WriteFence] = None) -> int:
    """Fork the file server; returns its pid."""
    parent = os.getpid()
    server = _Server(("", port), _Connection)
    server.run_dir, server.token, server.fence = run_dir, token, fence or WriteFence()

    def work() -> int:
        syscalls.die_with_parent(parent)
        server.serve_forever(poll_interval=3600)
        return 0

    pid = syscalls.fork(work)
    server.socket.close()
    return pid


class FileServerProcess:
    """The driver's file server process. Without it no rank's end would ever be reported, so the driver exits if it
    dies, and the next driver starts both."""

    def __init__(self, run_dir: str, token: bytes, port: int, fence: Optional[WriteFence] = None) -> None:
        self._pid = serve(run_dir, token, port, fence)
        self._closed = False
        self._watcher = threading.Thread(target=self._wait_for_end, daemon=True)
        self._watcher.start()

    def _wait_for_end(self) -> None:
        os.waitpid(self._pid, 0)
        if not self._closed:
            sys.stderr.write("the driver exits: its file server ended\n")
            sys.stderr.flush()
            os._exit(1)

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._watcher.join()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 1024
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    run_dir = ""
    token = b""
    fence: WriteFence

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def handle_error(self, request: object, client_address: object) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, (OSError, wire.WireError)):
            sys.stderr.write(f"file server: {client_address}: {error!r}\n")


class _Connection(socketserver.BaseRequestHandler):
    """One agent's connection."""

    server: _Server
    name = ""
    incarnation: Incarnation = NO_INCARNATION

    def handle(self) -> None:
        wire.lively(self.request)
        self.request.settimeout(30.0)
        stream = FileStream(self.request)
        self.name = stream.welcome(self.server.token, wire.FILE_SERVER)
        self.request.settimeout(None)
        handlers: Dict[str, Callable[[FileStream, wire.Message], None]] = {
            "claim": self._claim,
            "end": self._end,
            "put": self._put,
            "file": self._file,
            "get": self._get,
            "list": self._list,
        }
        while True:
            message = stream.receive()
            try:
                handlers[message["is"]](stream, message)
            except StaleIncarnation as stale:
                stream.send("stale", why=str(stale))

    def _path(self, message: wire.Message) -> str:
        """Path on disk; must be inside the directories that agents share."""
        path = os.path.normpath(str(message["path"]))
        if path.startswith(("/", "..")) or path.split("/")[0] not in PLACES:
            raise wire.WireError(f"agents have no access to {path}")
        return os.path.join(self.server.run_dir, path)

    def _claim(self, stream: FileStream, message: wire.Message) -> None:
        generation, restart = message["incarnation"]
        self.server.fence.claim(self.name, (int(generation), int(restart)))
        self.incarnation = (int(generation), int(restart))
        stream.send("ok")

    def _end(self, stream: FileStream, message: wire.Message) -> None:
        try:
            with open(self._path(message), "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(size - 1, 0))
                last = file.read(1)
        except OSError:
            size, last = 0, b""
        stream.send("end", n=size)
        stream.socket.sendall(last)

    def _put(self, stream: FileStream, message: wire.Message) -> None:
        path = self._path(message)
        data = stream.bytes(int(message["n"]))
        with self.server.fence.writing(self.name, self.incarnation, shared=False):
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
        path, count, received = self._path(message), int(message["n"]), False
        guard = self.server.fence.writing(self.name, self.incarnation, shared=True)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with atomic_file.replacing(path, durable=True, guard=guard) as part, open(part, "wb") as file:
                stream.receive_file(file, count)
                received = True
        except OSError as error:
            if error.errno not in NEVER:
                stream.send("no", why=f"{path}: {error.strerror}")
                raise
            if not received:
                with open(os.devnull, "wb") as null:
                    stream.receive_file(null, count)
            stream.send("never", why=error.strerror)
            return
        stream.send("ok", at=os.stat(path).st_mtime_ns)

    def _get(self, stream: FileStream, message: wire.Message) -> None:
        try:
            with open(self._path(message), "rb") as file:
                stats = os.fstat(file.fileno())
                stream.send("file", n=stats.st_size, at=stats.st_mtime_ns)
                stream.send_file(file, stats.st_size)
        except FileNotFoundError:
            stream.send("none")

    def _list(self, stream: FileStream, message: wire.Message) -> None:
        """Send a list page by page: a tree may have more files than fit into one frame."""
        page: List[List[object]] = []
        for folder, folders, names in os.walk(self._path(message)):
            folders.sort()
            for name in sorted(names):
                path = os.path.join(folder, name)
                try:
                    stats = os.stat(path)
                except FileNotFoundError:
                    continue
                if not atomic_file.is_unfinished(name):
                    page.append([os.path.relpath(path, self.server.run_dir), stats.st_size, stats.st_mtime_ns])
                if len(page) == PAGE:
                    stream.send("list", files=page, more=True)
                    page = []
        stream.send("list", files=page, more=False)
