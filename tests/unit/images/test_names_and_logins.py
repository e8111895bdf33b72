"""Names of images as docker reads them, and logins from where docker puts them."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from longboat.images import registry_login
from longboat.images.image_name import parse
from longboat.runtime.errors import LongboatError

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("text", "host", "repository", "asked"),
    [
        ("python", "registry-1.docker.io", "library/python", "latest"),
        ("python:3.12-slim", "registry-1.docker.io", "library/python", "3.12-slim"),
        ("me/train", "registry-1.docker.io", "me/train", "latest"),
        ("docker.io/python:3", "registry-1.docker.io", "library/python", "3"),
        ("ghcr.io/me/train:1", "ghcr.io", "me/train", "1"),
        ("localhost:5000/a/b/c", "localhost:5000", "a/b/c", "latest"),
        (f"ghcr.io/me/train:1@{DIGEST}", "ghcr.io", "me/train", DIGEST),
    ],
)
def test_a_name_says_where_and_what(text: str, host: str, repository: str, asked: str) -> None:
    found = parse(text)
    assert (found.host, found.repository, found.asked) == (host, repository, asked)
    assert parse(str(found)) == found


@pytest.mark.parametrize("text", ["", "Upper/case", "a b", "x:", "x@sha256:1", "ghcr.io/", "ghcr.io/a//b", "x:-bad"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(LongboatError, match="is not an image name"):
        parse(text)


def test_plain_http_is_for_this_machine_alone() -> None:
    assert [parse(f"{host}/x").is_local for host in ("localhost:5000", "127.0.0.1", "127.8.9.1:80", "[::1]:5000")] == [
        True
    ] * 4
    assert not any(parse(f"{host}/x").is_local for host in ("localhost.evil.io", "127.0.0.1.nip.io", "10.0.0.1:5000"))


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "PATH": str(tmp_path / "bin")}


def config(environ: dict[str, str], value: object) -> None:
    place = Path(environ["HOME"]) / ".docker"
    place.mkdir(exist_ok=True)
    (place / "config.json").write_text(json.dumps(value))


def helper(environ: dict[str, str], name: str, script: str) -> None:
    place = Path(environ["HOME"]) / "bin"
    place.mkdir(exist_ok=True)
    (place / f"docker-credential-{name}").write_text(f"#!/bin/sh\n{script}\n")
    (place / f"docker-credential-{name}").chmod(0o755)


def packed(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_a_login_is_found_in_dockers_file(environ: dict[str, str]) -> None:
    assert registry_login.find("ghcr.io", environ) is None
    config(
        environ,
        {"auths": {"ghcr.io": {"auth": packed("ann:a:b")}, registry_login.HUB_KEYS[0]: {"auth": packed("bob:c")}}},
    )
    found, hub = registry_login.find("ghcr.io", environ), registry_login.find("docker.io", environ)
    assert found is not None
    assert (found.user, found.password) == ("ann", "a:b")
    assert hub is not None
    assert hub.user == "bob"
    assert registry_login.find("quay.io", environ) is None


def test_a_helper_is_asked_before_the_file(environ: dict[str, str]) -> None:
    helper(environ, "vault", """read key; echo "{\\"Username\\": \\"$key\\", \\"Secret\\": \\"s\\"}" """)
    helper(environ, "empty", "echo 'credentials not found in native keychain'; exit 1")
    auths = {"ghcr.io": {"auth": packed("ann:secret")}, "quay.io": {"auth": packed("bob:secret")}}
    config(environ, {"auths": auths, "credHelpers": {"ghcr.io": "vault"}, "credsStore": "empty"})
    found, other = registry_login.find("ghcr.io", environ), registry_login.find("quay.io", environ)
    assert found is not None
    assert found.user == "ghcr.io"
    assert other is not None
    assert other.user == "bob", "what a helper does not know may stand in the file"


def test_a_helper_that_is_missing_or_broken_is_named(environ: dict[str, str]) -> None:
    config(environ, {"credsStore": "gone"})
    with pytest.raises(LongboatError, match="docker-credential-gone"):
        registry_login.find("ghcr.io", environ)
    helper(environ, "gone", "echo boom >&2; exit 3")
    with pytest.raises(LongboatError, match="boom"):
        registry_login.find("ghcr.io", environ)
    (Path(environ["HOME"]) / ".docker/config.json").write_text("{")
    with pytest.raises(LongboatError, match="cannot read"):
        registry_login.find("ghcr.io", environ)


def test_podmans_file_counts_too(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "auth.json").write_text(json.dumps({"auths": {"quay.io": {"auth": packed("eve:x")}}}))
    found = registry_login.find("quay.io", {**environ, "REGISTRY_AUTH_FILE": str(tmp_path / "auth.json")})
    assert found is not None
    assert found.user == "eve"
