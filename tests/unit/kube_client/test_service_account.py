"""A pod's own service account: the token is read each time, and the server must prove itself."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from longboat.runtime.kube_client.api import Api, ApiError, in_cluster
from tests.unit.kube_client.listening import listening
from tests.unit.kube_client.test_api import Script
from tests.unit.kubernetes.test_http_proxy import certificate

__all__ = ["certificate"]


class Secure(Script):
    """The same over TLS."""

    def __init__(self, certificate: tuple[Path, Path]) -> None:
        super().__init__()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        self.socket = context.wrap_socket(self.socket, server_side=True)

    def handle_error(self, *_: object) -> None:
        pass  # a client that does not trust us says so and goes


@pytest.fixture
def server(certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Secure]:
    with listening(Secure(certificate)) as found:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(found.server_port))
        yield found


def account(place: Path, authority: bytes) -> str:
    place.mkdir()
    (place / "token").write_text("first\n")
    (place / "namespace").write_text("team")
    (place / "ca.crt").write_bytes(authority)
    return str(place)


def test_a_pod_is_who_its_token_says_also_after_the_token_was_replaced(
    server: Secure, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    found = in_cluster(account(tmp_path / "account", certificate[0].read_bytes()))
    server.answers = [(200, {}, [{"metadata": {"name": "a"}}])]
    assert Api(found).get("Pod", "a")["metadata"]["name"] == "a"
    assert server.asked[0][1] == "/api/v1/namespaces/team/pods/a"
    assert found.headers(False) == {"Authorization": "Bearer first"}
    (tmp_path / "account/token").write_text("second\n")
    assert found.headers(False) == {"Authorization": "Bearer second"}


def test_a_server_that_another_authority_has_signed_is_not_spoken_to(
    server: Secure, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=other"]
    subprocess.run(
        [*words, "-out", str(tmp_path / "other.pem"), "-keyout", str(tmp_path / "key.pem")],
        check=True,
        capture_output=True,
    )
    found = in_cluster(account(tmp_path / "account", (tmp_path / "other.pem").read_bytes()))
    with pytest.raises(ApiError, match="certificate"):
        Api(found).get("Pod", "a")
    assert server.asked == []
