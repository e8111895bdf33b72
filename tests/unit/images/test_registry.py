"""A registry that breaks off, redirects and forgets: over real sockets."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from longboat.images import registry
from longboat.images.image_name import parse

BLOB = b"layer" * 1000
DIGEST = "sha256:" + hashlib.sha256(BLOB).hexdigest()
LOGIN = "Basic " + base64.b64encode(b"ann:secret").decode()


class Server(ThreadingHTTPServer):
    """Wants a login; gives blobs from elsewhere; loses the first upload half way."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.elsewhere = ""
        self.asked: list[tuple[str, str, str]] = []
        self.uploads = 0
        self.got = b""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def answer(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def known(self) -> bool:
        self.server.asked.append((self.command, self.path, self.headers.get("Authorization", "")))
        return self.path.startswith("/open/") or self.headers.get("Authorization") == LOGIN

    def do_GET(self) -> None:
        if not self.known():
            self.answer(401, {"WWW-Authenticate": 'Basic realm="test"'})
        elif self.path.startswith("/open/"):
            self.answer(200, body=BLOB)
        else:
            self.answer(307, {"Location": f"http://{self.server.elsewhere}/open/{DIGEST}"})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self.known():
            self.answer(401, {"WWW-Authenticate": 'Basic realm="test"'})
            return
        self.server.uploads += 1
        self.answer(202, {"Location": f"/v2/x/blobs/uploads/{self.server.uploads}?state=s"})

    def do_PUT(self) -> None:
        self.known()
        if "/uploads/1?" in self.path:
            self.rfile.read(10)
            self.connection.close()
            return
        self.server.got = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(201)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found
        found.shutdown()


@pytest.fixture
def repository(server: Server, tmp_path: Path) -> registry.Repository:
    auth = {"auths": {server.address: {"auth": LOGIN.split()[1]}}}
    (tmp_path / "config.json").write_text(json.dumps(auth))
    return registry.Repository(parse(f"{server.address}/x"), {"DOCKER_CONFIG": str(tmp_path)})


def test_a_blob_that_lies_elsewhere_is_fetched_there_without_the_login(
    server: Server, repository: registry.Repository, tmp_path: Path
) -> None:
    with Server() as elsewhere:
        threading.Thread(target=elsewhere.serve_forever, daemon=True).start()
        server.elsewhere = elsewhere.address
        repository.save(DIGEST, str(tmp_path / "blob"))
        assert (tmp_path / "blob").read_bytes() == BLOB
        assert elsewhere.asked == [("GET", f"/open/{DIGEST}", "")], "the password stays with its registry"
        elsewhere.shutdown()


def test_another_blob_than_asked_for_is_not_taken(
    server: Server, repository: registry.Repository, tmp_path: Path
) -> None:
    server.elsewhere = server.address
    with pytest.raises(registry.RegistryError, match="corrupt"):
        repository.save("sha256:" + "0" * 64, str(tmp_path / "blob"))
    assert list(tmp_path.iterdir()) == [tmp_path / "config.json"], "nothing half done is left"


def test_an_upload_that_breaks_off_is_begun_anew(
    server: Server, repository: registry.Repository, tmp_path: Path
) -> None:
    (tmp_path / "blob").write_bytes(BLOB)
    repository.upload(DIGEST, tmp_path / "blob")
    assert server.got == BLOB
    puts = [path for method, path, _ in server.asked if method == "PUT"]
    assert [path.partition("?")[0] for path in puts] == ["/v2/x/blobs/uploads/1", "/v2/x/blobs/uploads/2"]
    assert all(f"digest=sha256%3A{DIGEST[7:]}" in path for path in puts)
