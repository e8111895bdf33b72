"""The server as users have it: a process of its own, asked over real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

PATIENCE = 60.0
"""Seconds after which something that must happen is said not to happen."""


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"])


@dataclass
class Serving:
    """A running `longboat serve`."""

    process: subprocess.Popen[str]
    port: int
    grpc_port: int
    said: Path
    """Its stderr."""

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, content, headers or {})
            answer = connection.getresponse()
            return Answer(answer.status, answer.read(), {k.lower(): v for k, v in answer.getheaders()})
        finally:
            connection.close()

    def get(self, path: str, headers: dict[str, str] | None = None) -> Answer:
        return self.ask("GET", path, None, headers)

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Answer:
        return self.ask("POST", path, body, headers)

    def predict(self, model: str, instances: list[Any]) -> Any:
        answer = self.post(f"/v1/models/{model}:predict", {"instances": instances})
        assert answer.status == 200, answer.body
        return answer.json["predictions"]

    def raw(self, content: bytes, *, until_closed: bool = True) -> bytes:
        """Sends bytes as they are; what comes back until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as link:
            link.sendall(content)
            if not until_closed:
                return link.recv(65536)
            found = b""
            while block := link.recv(65536):
                found += block
            return found

    def until(self, true: Any, seconds: float = PATIENCE) -> None:
        """Waits for something that the server does on its own time."""
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, f"it did not come about in {seconds} s; stderr: {self.said.read_text()}"
            time.sleep(0.02)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


@contextlib.contextmanager
def serving(directory: Path, *words: str | os.PathLike[str], env: dict[str, str] | None = None) -> Iterator[Serving]:
    """`longboat serve WORDS`, on free ports, until the block ends."""
    said = directory / f"serve-{time.monotonic_ns()}.err"
    command = [
        sys.executable,
        "-m",
        "longboat",
        "serve",
        *(os.fspath(word) for word in words),
        "--port",
        "0",
        "--grpc-port",
        "0",
    ]
    environment = {**os.environ, "LONGBOAT_HOME": str(directory / "home"), **(env or {})}
    with open(said, "w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
    assert process.stdout is not None
    line = process.stdout.readline()
    ports = re.search(r"https?://\S+:(\d+)(?:, gRPC \S+:(\d+))?: ", line)
    try:
        assert ports, f"it said {line!r} and {said.read_text()!r}"
        yield Serving(process, int(ports[1]), int(ports[2] or 0), said)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        process.stdout.close()
