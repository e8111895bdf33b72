"""Finds registry credentials stored by `docker login` and `podman login`.

They are never written. A password is sent only to its registry and never appears in messages.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

from longboat.images.image_name import HUB
from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import dataclass

HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", "docker.io", "registry-1.docker.io")


@dataclass(frozen=True)
class Login:
    user: str
    password: str
    source: str
    """File that it comes from, for messages."""
    identity: bool = False
    """The password is an identity token, to be exchanged for a token for one repository."""

    @property
    def basic(self) -> str:
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def find(registry: str, environ: Mapping[str, str]) -> Login | None:
    """The login for a registry; None if there is none."""
    for path in _files(environ):
        try:
            with open(path, encoding="utf-8") as file:
                config = json.load(file)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise LongboatError(f"cannot read {path}: {error}", "fix or remove it, then log in again") from None
        if isinstance(config, dict):
            login = _in(config, registry, path, environ)
            if login is not None:
                return login
    return None


def command(registry: str) -> str:
    """The command to log in."""
    tool = next((name for name in ("docker", "podman", "buildah") if shutil.which(name)), None)
    argument = "" if registry == HUB else f" {registry}"
    if tool:
        return f"{tool} login{argument}"
    entry = json.dumps({"auths": {registry: {"auth": "..."}}})
    return f"write ~/.docker/config.json: {entry}, where ... is the base64 form of USER:PASSWORD"


def place(environ: Mapping[str, str]) -> str:
    """The credentials file that is read first."""
    return next(_files(environ))


def _files(environ: Mapping[str, str]) -> Iterator[str]:
    home = environ.get("HOME") or os.path.expanduser("~")
    yield os.path.join(environ.get("DOCKER_CONFIG") or os.path.join(home, ".docker"), "config.json")
    if environ.get("REGISTRY_AUTH_FILE"):
        yield environ["REGISTRY_AUTH_FILE"]
    if environ.get("XDG_RUNTIME_DIR"):
        yield os.path.join(environ["XDG_RUNTIME_DIR"], "containers", "auth.json")
    yield os.path.join(home, ".config", "containers", "auth.json")


def _in(config: Mapping[str, Any], registry: str, path: str, environ: Mapping[str, str]) -> Login | None:
    keys = HUB_KEYS if registry == HUB else (registry, f"https://{registry}", f"http://{registry}")
    helpers = config.get("credHelpers") or {}
    helper = next((helpers[key] for key in keys if key in helpers), config.get("credsStore"))
    if helper:
        for key in keys[:1] if registry == HUB else keys[:2]:
            login = _helped(str(helper), key, path, environ)
            if login is not None:
                return login
    auths = config.get("auths") or {}
    entry = next((auths[key] for key in keys if key in auths), None)
    if not isinstance(entry, dict):
        return None
    if entry.get("identitytoken"):
        return Login("<token>", str(entry["identitytoken"]), path, identity=True)
    if entry.get("auth"):
        try:
            user, colon, password = base64.b64decode(entry["auth"]).decode().partition(":")
        except ValueError:
            colon = ""
        if not colon:
            raise LongboatError(f"{path}: the login for {registry} is not valid", command(registry))
        return Login(user, password, path)
    if entry.get("username"):
        return Login(str(entry["username"]), str(entry.get("password", "")), path)
    return None


def _helped(helper: str, key: str, path: str, environ: Mapping[str, str]) -> Login | None:
    program = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
            [program, "get"], input=key, env=dict(environ), capture_output=True, text=True, check=False, timeout=60
        )
    except FileNotFoundError:
        raise LongboatError(
            f"{path} uses {program} for {key}, but {program} is not installed",
            "install it, or remove it from that file and log in again",
        ) from None
    except subprocess.TimeoutExpired:
        raise LongboatError(f"{program} timed out after 60 s", f"try it: echo {key} | {program} get") from None
    if done.returncode:
        output = (done.stdout or done.stderr).strip()
        if "not found" in output:
            return None
        raise LongboatError(f"{program} failed: {output or 'no message'}", f"try it: echo {key} | {program} get")
    try:
        credentials = json.loads(done.stdout)
        user, secret = str(credentials["Username"]), str(credentials["Secret"])
    except (ValueError, KeyError, TypeError):
        raise LongboatError(
            f"{program} returned no credentials for {key}", f"try it: echo {key} | {program} get"
        ) from None
    return Login(user, secret, f"{program} ({path})", identity=user == "<token>")
