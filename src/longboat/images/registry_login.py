"""Credentials for registries, from where `docker login` and `podman login` put them.

Read and never written; a password goes to its registry and nowhere else, not into a message either.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from longboat.images.image_name import HUB
from longboat.runtime.errors import LongboatError

HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", "docker.io", "registry-1.docker.io")


@dataclass(frozen=True)
class Login:
    user: str
    password: str
    source: str
    """The file, for messages."""
    identity: bool = False
    """The password is a token, to be changed into one for a single repository."""

    @property
    def basic(self) -> str:
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def find(registry: str, environ: Mapping[str, str]) -> Login | None:
    """What is known for a registry; None: nobody has logged in."""
    for path in _files(environ):
        try:
            with open(path, encoding="utf-8") as file:
                config = json.load(file)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise LongboatError(f"{path} cannot be read: {error}", "mend or remove it, then log in again") from None
        if isinstance(config, dict):
            found = _in(config, registry, path, environ)
            if found is not None:
                return found
    return None


def command(registry: str) -> str:
    """What to type to log in."""
    tool = next((name for name in ("docker", "podman", "buildah") if shutil.which(name)), None)
    place = "" if registry == HUB else f" {registry}"
    if tool:
        return f"{tool} login{place}"
    entry = json.dumps({"auths": {registry: {"auth": "..."}}})
    return f"write ~/.docker/config.json: {entry}, where ... is the base64 form of USER:PASSWORD"


def place(environ: Mapping[str, str]) -> str:
    """The file that is looked into first."""
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
            found = _helped(str(helper), key, path, environ)
            if found is not None:
                return found
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
            raise LongboatError(f"{path}: the login for {registry} is damaged", command(registry))
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
            f"{path} says that {program} knows the login for {key}, and there is no such program",
            "install it, or take it out of that file and log in again",
        ) from None
    except subprocess.TimeoutExpired:
        raise LongboatError(
            f"{program} did not answer within a minute", f"try it: echo {key} | {program} get"
        ) from None
    if done.returncode:
        said = (done.stdout or done.stderr).strip()
        if "not found" in said:
            return None
        raise LongboatError(f"{program} failed: {said or 'no message'}", f"try it: echo {key} | {program} get")
    try:
        told = json.loads(done.stdout)
        user, secret = str(told["Username"]), str(told["Secret"])
    except (ValueError, KeyError, TypeError):
        raise LongboatError(f"{program} gave no credentials for {key}", f"try it: echo {key} | {program} get") from None
    return Login(user, secret, f"{program} ({path})", identity=user == "<token>")
