"""An API server behind a proxy: a real proxy process, plain or by TLS, and a real connection through it."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from longboat.engines.kubernetes import kube_config
from longboat.runtime.errors import LongboatError
from longboat.runtime.kube_client.api import Api, ApiError
from tests.unit.kube_client.listening import listening

PROXY = """
import base64, select, socket, ssl, sys, threading

listener = socket.create_server(("127.0.0.1", 0))
wanted = "Basic " + base64.b64encode(b"me:se cret").decode()
print(listener.getsockname()[1], flush=True)


def serve(client):
    if len(sys.argv) > 1:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[1], sys.argv[2])
        client = context.wrap_socket(client, server_side=True)
    head = b""
    while not head.endswith(b"\\r\\n\\r\\n"):
        head += client.recv(1)
    first, *rest = head.decode().split("\\r\\n")
    print(first, flush=True)
    if f"Proxy-Authorization: {wanted}" not in rest:
        client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\\r\\n\\r\\n")
        return client.close()
    host, _, port = first.split()[1].partition(":")
    server = socket.create_connection((host, int(port)))
    client.sendall(b"HTTP/1.1 200 Connection established\\r\\nVia: test\\r\\n\\r\\n")

    def forward(source, target):
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass

    threading.Thread(target=forward, args=(server, client), daemon=True).start()
    forward(client, server)


while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("pki")
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = place / "certificate.pem", place / "key.pem"
    subprocess.run([*words, "-out", str(files[0]), "-keyout", str(files[1])], check=True, capture_output=True)
    return files


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = json.dumps({"large": "x" * 3_000_000, "path": self.path}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        body = json.dumps({"read": len(self.rfile.read(int(self.headers["Content-Length"])))}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(certificate: tuple[Path, Path]) -> Iterator[int]:
    """An API server that speaks TLS, as all do."""
    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    found.socket = context.wrap_socket(found.socket, server_side=True)
    with listening(found):
        yield found.server_address[1]


@contextmanager
def proxy(*words: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    process = subprocess.Popen([sys.executable, "-c", PROXY, *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process
    finally:
        process.kill()
        process.communicate()


def client(tmp_path: Path, port: int, url: str, certificate: Path) -> Api:
    cluster = {"server": f"https://127.0.0.1:{port}", "proxy-url": url, "certificate-authority": str(certificate)}
    found = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(found))
    return Api(kube_config.server({"KUBECONFIG": str(tmp_path / "config")}), patience=0.0)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_requests_go_through_the_proxy_of_the_kubeconfig(
    tmp_path: Path, server: int, certificate: tuple[Path, Path], scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))  # the machine's own trust, for the proxy
    with proxy(*(map(str, certificate) if scheme == "https" else ())) as (port, process):
        api = client(tmp_path, server, f"{scheme}://me:se%20cret@localhost:{port}", certificate[0])
        for _ in range(2):
            answer = api.request("GET", "/there")
            assert answer["path"] == "/there"
            assert len(answer["large"]) == 3_000_000
        assert api.request("POST", "/here", {"large": "y" * 3_000_000})["read"] > 3_000_000
        assert process.stdout is not None
        assert process.stdout.readline() == f"CONNECT 127.0.0.1:{server} HTTP/1.1\n"


def test_what_the_proxy_refuses_is_said_without_the_password(
    tmp_path: Path, server: int, certificate: tuple[Path, Path]
) -> None:
    with proxy() as (port, _):
        api = client(tmp_path, server, f"http://me:wrong@127.0.0.1:{port}", certificate[0])
        with pytest.raises(ApiError, match="407 Proxy Authentication Required") as error:
            api.request("GET", "/there")
    assert f"the proxy http://127.0.0.1:{port} answered" in error.value.message
    assert "wrong" not in error.value.message


def test_a_proxy_of_another_kind_is_refused(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    with pytest.raises(LongboatError, match=r"socks5://host:1080 is no http or https proxy"):
        client(tmp_path, 1, "socks5://me:secret@host:1080", certificate[0])
