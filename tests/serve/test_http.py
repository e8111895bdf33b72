"""HTTP itself: what clients may do to a connection, and what they may not."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from longboat.serve import http_server, routes
from tests.serve import making
from tests.serve.serving import PATIENCE, Serving, serving

ROW = json.dumps({"instances": [[0.5] * 784]}).encode()
REQUEST = b"POST /v1/models/mnist:predict HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(ROW) + ROW


def status_lines(content: bytes) -> list[int]:
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3}) ", content)]


def test_pipelined_requests_are_answered_in_order(server: Serving) -> None:
    asked = [b"GET /v2/models/%b HTTP/1.1\r\nHost: h\r\n\r\n" % name for name in (b"mnist", b"table", b"nobody")] * 50
    mixed = b"".join(asked) + REQUEST * 3 + b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n"
    found = server.raw(mixed)
    assert status_lines(found) == [200, 200, 404] * 50 + [200] * 4
    assert re.findall(rb'"name":"(mnist|table)","versions"', found) == [b"mnist", b"table"] * 50


def test_a_request_in_single_bytes_is_one_request(server: Serving) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in REQUEST[:300]:
            link.send(bytes([byte]))
        link.sendall(REQUEST[300:])
        assert status_lines(link.recv(65536)) == [200]


def test_a_chunked_body_is_put_together(server: Serving) -> None:
    head = (
        b"POST /v1/models/mnist:predict HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    )
    parts = [ROW[at : at + 100] for at in range(0, len(ROW), 100)]
    body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    assert status_lines(server.raw(head + body + b"0\r\n\r\n")) == [200]


def test_a_client_that_asks_first_is_told_to_go_on(server: Serving) -> None:
    head, body = REQUEST.split(b"\r\n\r\n", 1)
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as link:
        link.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert link.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        link.sendall(body)
        assert status_lines(link.recv(65536)) == [200]


def test_an_old_client_gets_its_connection_closed(server: Serving) -> None:
    assert b"Connection: close" in server.raw(b"GET /healthz HTTP/1.0\r\n\r\n")


def test_a_half_closed_connection_still_gets_its_answer(server: Serving) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as link:
        link.sendall(REQUEST)
        link.shutdown(socket.SHUT_WR)
        found = b""
        while block := link.recv(65536):
            found += block
        assert status_lines(found) == [200]


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"y" * 70_000, 431),
        (b"POST /v1/models/mnist:predict HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 1\r\n\r\n{", 400),
        (b"CONNECT example:443 HTTP/1.1\r\n\r\n", 400),
    ],
)
def test_what_is_not_right_is_answered_and_closed(server: Serving, content: bytes, status: int) -> None:
    found = server.raw(content)
    assert status_lines(found) == [status]
    assert json.loads(found.partition(b"\r\n\r\n")[2])["error"]


def test_a_wish_for_another_protocol_is_ignored(server: Serving) -> None:
    assert status_lines(server.raw(b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x81")) == [200]


def test_head_has_no_body(server: Serving) -> None:
    found = server.raw(b"HEAD /v1/models/mnist HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert found.endswith(b"\r\n\r\n")
    assert b"Content-Length: 1" in found


def test_a_client_that_vanishes_disturbs_nobody(server: Serving) -> None:
    for cut in (10, 200, len(REQUEST) - 1, len(REQUEST)):
        link = socket.create_connection(("127.0.0.1", server.port))
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        link.sendall(REQUEST[:cut])
        link.close()  # a reset
    assert server.predict("mnist", [[0.5] * 784])


def test_a_body_beyond_the_limit_is_refused_however_it_comes(models: Path, tmp_path: Path) -> None:
    with serving(tmp_path, models / "mnist", "--max-body", "1K", "--no-grpc") as small:
        answer = small.post("/v1/models/mnist:predict", ROW)
        assert answer.status == 413
        assert "--max-body" in answer.error
        head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert status_lines(small.raw(head + b"800\r\n" + b"x" * 2048 + b"\r\n")) == [413]
        import gzip

        bomb = gzip.compress(b"0" * 5000)
        assert small.post("/v1/models/mnist:predict", bomb, {"Content-Encoding": "gzip"}).status == 413


def test_a_request_that_never_becomes_whole_is_given_up(models: Path, tmp_path: Path) -> None:
    with serving(tmp_path, models / "mnist", "--timeout", "0.2", "--no-grpc") as hasty:
        assert status_lines(hasty.raw(REQUEST[:-5])) == [408]
        assert status_lines(hasty.raw(b"GET / HT")) == [408]


def test_a_token_is_asked_for(models: Path, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("s3cret\n")
    with serving(tmp_path, models / "mnist", "--token-file", secret) as guarded:
        refused = guarded.post("/v1/models/mnist:predict", ROW)
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert guarded.get("/metrics", {"Authorization": "Bearer wrong"}).status == 401
        assert guarded.post("/v1/models/mnist:predict", ROW, {"Authorization": "Bearer s3cret"}).status == 200
        assert guarded.get("/healthz").status == guarded.get("/readyz").status == 200
        assert "s3cret" not in guarded.said.read_text()


def test_a_token_is_asked_for_before_the_body_comes(models: Path, tmp_path: Path) -> None:
    head = b"POST /v1/models/mnist:predict HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 60000000\r\n"
    with serving(tmp_path, models / "mnist", "--no-grpc", "--token", "secret") as guarded:
        found = guarded.raw(head + b"\r\n")
        assert status_lines(found) == [401]
        assert b"\r\nWWW-Authenticate: Bearer\r\n" in found
        told = guarded.raw(head + b"Authorization: Bearer secret\r\n\r\n", until_closed=False)
        assert status_lines(told) == [100]


def test_all_bodies_together_are_bounded_and_what_is_answered_or_gone_makes_room() -> None:
    def handler(request: http_server.Request) -> None:
        request.json(b"%d" % len(request.body))

    site = http_server.HttpSite(handler, lambda _: None, routes.error, http_server.HttpLimits(body=100, held=150))
    head = b"POST / HTTP/1.1\r\nContent-Length: 100\r\n\r\n"

    async def holds(count: int) -> None:
        while site.held != count:
            await asyncio.sleep(0)

    async def ask() -> None:
        server = await asyncio.get_running_loop().create_server(site.connection, "127.0.0.1", 0)
        where = server.sockets[0].getsockname()
        read, write = await asyncio.open_connection(*where)
        write.write(head + b"x" * 90)
        await holds(90)

        other, writer = await asyncio.open_connection(*where)
        writer.write(head + b"x" * 90)
        found = await other.read()
        assert status_lines(found) == [503]
        assert b"the server is busy with 90 bytes of other requests (limit 150): try again" in found
        writer.close()
        await holds(90)

        write.write(b"x" * 10)
        assert status_lines(await read.readuntil(b"\r\n\r\n100")) == [200]
        await holds(0)
        write.write(head + b"x" * 90)
        await holds(90)
        write.close()
        await holds(0)
        server.close()

    asyncio.run(asyncio.wait_for(ask(), PATIENCE))


def test_tls(models: Path, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-out", str(cert), "-keyout", str(key)]
    subprocess.run([*make.split(), *names], check=True, capture_output=True)
    with serving(tmp_path, models / "mnist", "--tls-cert", cert, "--tls-key", key) as safe:
        context = ssl.create_default_context(cafile=str(cert))
        with (
            socket.create_connection(("127.0.0.1", safe.port), timeout=PATIENCE) as link,
            context.wrap_socket(link, server_hostname="localhost") as secure,
        ):
            secure.sendall(REQUEST)
            assert status_lines(secure.recv(65536)) == [200]
        import grpc

        from tests.serve.test_grpc import predict_request

        channel = grpc.secure_channel(f"localhost:{safe.grpc_port}", grpc.ssl_channel_credentials(cert.read_bytes()))
        with channel:
            call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
            assert call(predict_request("mnist").SerializeToString(), timeout=PATIENCE)


def test_pages_are_served(server: Serving) -> None:
    for path in ("/", "/models/mnist", "/models/words"):
        answer = server.get(path)
        assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert b"<html" in answer.body
    assert server.get("/models/nobody").status == 404


def test_metrics_count_what_happened(models: Path, tmp_path: Path) -> None:
    with serving(tmp_path, models / "mnist", "--no-grpc") as fresh:
        for _ in range(3):
            fresh.predict("mnist", [[0.5] * 784] * 2)
        fresh.post("/v1/models/mnist:predict", {"instances": [[1]]})
        text = fresh.get("/metrics").body.decode()
    assert 'longboat_requests_total{model="mnist",protocol="rest",code="200"} 3' in text
    assert 'longboat_requests_total{model="mnist",protocol="rest",code="400"} 1' in text
    assert 'longboat_request_seconds_count{model="mnist",protocol="rest"} 4' in text
    assert 'longboat_batches_total{model="mnist",version="1",rows="2"} 3' in text
    assert 'longboat_rows_total{model="mnist",version="1"} 6' in text
    assert 'longboat_model_state{model="mnist",version="1"} 1' in text


def test_it_is_the_digits_that_answer() -> None:
    """The yardstick of the other tests is not the server's own."""
    import numpy as np

    row: np.ndarray[Any, Any] = np.full((1, 784), 0.5, np.float32)
    assert making.expected(0, row).sum() == pytest.approx(1)
    assert not np.allclose(making.expected(0, row), making.expected(1, row))
