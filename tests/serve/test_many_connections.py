"""Ten thousand clients that send a byte now and then, and one that wants an answer."""

from __future__ import annotations

import resource
import selectors
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from longboat.serve.http_server import LINGER
from tests.serve.serving import serving

CROWD = 10_000
SPARE = 500
ROW = [[0.5] * 784]


@pytest.fixture
def many_files() -> Iterator[int]:
    """As many open files as the system allows this process; how many clients that leaves room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield min(CROWD, hard - SPARE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
def test_slow_clients_hold_up_nobody(models: Path, tmp_path: Path, many_files: int) -> None:
    with serving(tmp_path, models / "mnist", "--no-grpc", "--timeout", "600") as server:
        links = []
        try:
            head = b"POST /v1/models/mnist:predict HTTP/1.1\r\nHost: h\r\nContent-Length: 999\r\n\r\n{"
            for number in range(many_files):
                link = socket.create_connection(("127.0.0.1", server.port), timeout=60)
                link.sendall(head[: number % len(head) + 1])
                links.append(link)
            server.until(lambda: f"longboat_connections {many_files + 1}\n" in server.get("/metrics").body.decode(), 60)
            for link in links[::7]:
                link.sendall(b"x")
            assert server.predict("mnist", ROW)
            with selectors.DefaultSelector() as selector:
                for link in links:
                    selector.register(link, selectors.EVENT_READ)
                answered = {key.fd for key, _ in selector.select(0)}
            assert len(answered) <= len(links) / 7 + 1, "only those whose extra byte broke their request are answered"
        finally:
            for link in links:
                link.close()
        server.until(lambda: "longboat_connections 1\n" in server.get("/metrics").body.decode(), 60)
        assert server.predict("mnist", ROW)


@pytest.mark.slow
def test_a_client_that_reads_slowly_gets_all_of_it(models: Path, tmp_path: Path) -> None:
    """An answer larger than the sockets' buffers, read after a pause that is longer than a closing connection lingers;
    meanwhile others are answered."""
    with serving(tmp_path, models / "logarithm", "--no-grpc") as server:
        rows = 1_000_000
        body = b'{"instances":[' + b",".join([b"[1,2]"] * rows) + b"]}"
        head = b"POST /v1/models/logarithm:predict HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as link:
            link.sendall(head % len(body) + body)
            found = bytearray(link.recv(1000))
            assert found.startswith(b"HTTP/1.1 200 OK")
            time.sleep(LINGER + 2)
            assert server.predict("logarithm", [[1, 1]]) == [[0.0, 0.0]]
            while block := link.recv(1 << 20):
                found += block
        assert found.count(b"0.6931472") == rows
