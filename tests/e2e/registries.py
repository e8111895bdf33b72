"""A real registry as a process of this machine: files in a directory, and a login by password or by token."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

from tests.cluster import pins, programs
from tests.ports import free_port

USER, PASSWORD = "longboat", "longboat-test"
PASSWORDS = next(
    line.split('"')[1].removesuffix("\\n")
    for line in (pins.MANIFESTS / "registry.yaml").read_text().splitlines()
    if "htpasswd: " in line and "$2y$" in line
)


@dataclass(frozen=True)
class Registry:
    address: str
    directory: Path
    log: Path

    def asked(self, method: str, part: str) -> int:
        """How often it was asked, so far."""
        lines = self.log.read_text().splitlines()
        return sum(f'"{method} /v2/' in line and part in line for line in lines)


def login(directory: Path, address: str, user: str = USER, password: str = PASSWORD) -> None:
    """As `docker login` leaves it."""
    directory.mkdir(parents=True, exist_ok=True)
    auth = base64.b64encode(f"{user}:{password}".encode()).decode()
    (directory / "config.json").write_text(json.dumps({"auths": {address: {"auth": auth}}}))


@contextmanager
def registry(directory: Path, auth: dict[str, object] | None = None, deletes: bool = True) -> Iterator[Registry]:
    program = programs.build(print, (pins.ADDONS["registry"],))["registry"]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "htpasswd").write_text(PASSWORDS + "\n")
    address = f"127.0.0.1:{free_port()}"
    config = {
        "version": "0.1",
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(directory / "data")}, "delete": {"enabled": deletes}},
        "http": {"addr": address, "secret": "one-process-is-all"},
        "auth": auth or {"htpasswd": {"realm": "test", "path": str(directory / "htpasswd")}},
    }
    (directory / "config.json").write_text(json.dumps(config))
    log = directory / "log"
    with open(log, "wb") as out:
        environ = {**os.environ, "OTEL_TRACES_EXPORTER": "none"}
        command = [str(program), "serve", str(directory / "config.json")]
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environ)
    try:
        _await(address, process, log)
        yield Registry(address, directory, log)
    finally:
        process.kill()
        process.wait()


def _await(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    host, _, port = address.partition(":")
    due = time.monotonic() + 60
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
            return
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < due, "the registry does not listen"
            time.sleep(0.05)


class Authority:
    """Gives tokens for a registry to who has the password, signed with a key of its own, as Docker Hub's does."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._key, self.certificate = directory / "key.pem", directory / "certificate.pem"
        words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=authority"]
        subprocess.run(
            [*words, "-keyout", str(self._key), "-out", str(self.certificate)], check=True, capture_output=True
        )
        authority = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = authority.answer(self.path, self.headers.get("Authorization", ""))
                body = json.dumps(answer or {"error": "denied"}).encode()
                self.send_response(200 if answer else 401)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.realm = f"http://127.0.0.1:{self._server.server_address[1]}/token"
        self.scopes: list[str] = []

    @property
    def settings(self) -> dict[str, object]:
        """Of a registry that believes this authority."""
        told = {"realm": self.realm, "service": "test", "issuer": "authority", "rootcertbundle": str(self.certificate)}
        return {"token": told}

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, authorization: str) -> dict[str, str] | None:
        expected = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if authorization != f"Basic {expected}":
            return None
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query)
        self.scopes += query.get("scope", [])
        access = []
        for scope in query.get("scope", []):
            kind, name, actions = scope.split(":")
            granted = [each for each in actions.split(",") if not name.startswith("theirs/") or each == "pull"]
            access.append({"type": kind, "name": name, "actions": granted})
        now = int(time.time())
        claims = {"iss": "authority", "sub": USER, "aud": query["service"][0], "exp": now + 60, "nbf": now - 60}
        return {"token": self._signed({**claims, "iat": now, "jti": str(now), "access": access})}

    def _signed(self, claims: dict[str, object]) -> str:
        der = "".join(self.certificate.read_text().splitlines()[1:-1])
        head = {"typ": "JWT", "alg": "RS256", "x5c": [der]}
        text = ".".join(_url(json.dumps(part).encode()) for part in (head, claims))
        command = ["openssl", "dgst", "-sha256", "-sign", str(self._key)]
        signature = subprocess.run(command, input=text.encode(), check=True, capture_output=True).stdout
        return f"{text}.{_url(signature)}"


def _url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
