"""Parses the address of a model: server, protocol, model name.

Pure: no network. What the address leaves open stays empty, and `model_requests` finds it out.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote, urlsplit

from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import dataclass, replace
from longboat.runtime.rank_env import bracketed

_SCHEMES = {"http": ("", False), "https": ("", True), "grpc": ("grpc", False), "grpcs": ("grpc", True)}
_PORTS = {"http": 80, "https": 443, "grpc": 8500, "grpcs": 443}
_PATHS = (
    (re.compile(r"(.*)/v1/models/([^/:]+)(?:/versions/(\d+))?(?:/metadata|:\w+)?/?"), "rest"),
    (re.compile(r"(.*)/v2/models/([^/]+)(?:/versions/([^/]+))?(?:/infer|/ready)?/?"), "v2"),
    (re.compile(r"(.*)/models/([^/:]+)()/?"), ""),
    (re.compile(r"(.*?)()()/?"), ""),
)
_BARE = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s/:@]+):(\d{1,5})(/\S*)?")


@dataclass(frozen=True)
class Target:
    """A model on a server; empty fields are unknown."""

    host: str
    port: int
    protocol: str = ""
    model: str = ""
    version: str = ""
    tls: bool = False
    prefix: str = ""
    """Path before /v1 or /v2, for a server behind a proxy."""
    token: str = ""
    ca: str = ""
    """File of certificates to trust instead of the system's."""

    @property
    def authority(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"

    @property
    def url(self) -> str:
        """The URL, which parses back to the same target."""
        s = "s" if self.tls else ""
        version = f"/versions/{self.version}" if self.version else ""
        if self.protocol == "grpc":
            return f"grpc{s}://{self.authority}" + (f"/{self.model}{version}" if self.model else "")
        path = f"/{'v2' if self.protocol == 'v2' else 'v1'}/models/{self.model}{version}" if self.model else ""
        return f"http{s}://{self.authority}{self.prefix}{path}"

    def but(self, **changes: str) -> Target:
        """The target with the changes that are not empty."""
        given: dict[str, Any] = {name: value for name, value in changes.items() if value}
        return replace(self, **given)


def looks_like_one(text: str) -> bool:
    """Whether the text is a URL or HOST:PORT, not a path or a run."""
    return "://" in text or _BARE.fullmatch(text) is not None


def parse(text: str, protocol: str = "") -> Target:
    """Parse an address; `protocol` overrides the scheme.

    Forms: `http://host:8501/v1/models/NAME`, `.../v2/models/NAME`, `.../models/NAME` (a demo page),
    `grpc://host:8500/NAME`, `host:8500`, `host:8500/NAME`."""
    scheme, rest = _scheme(text)
    if scheme == "" and (bare := _BARE.fullmatch(rest)) is not None:
        host, port, path = bare[1].strip("[]"), int(bare[2]), bare[3] or ""
        scheme_protocol, tls = "", False
        path = f"/models{path}" if re.fullmatch(r"/[^/]+", path) else path
    else:
        if scheme not in _SCHEMES:
            raise _not_an_address(text)
        try:
            parts = urlsplit(text)
            host, port = parts.hostname or "", parts.port or _PORTS[scheme]
        except ValueError as error:
            raise LongboatError(f"{text!r} is not a server address: {error}") from None
        path, (scheme_protocol, tls) = parts.path, _SCHEMES[scheme]
    if not host or not 0 < port < 65536:
        raise _not_an_address(text)
    if scheme_protocol == "grpc":
        if protocol not in ("", "grpc"):
            raise LongboatError(f"{text} is a gRPC address, but --protocol is {protocol}", "remove one of them")
        path = f"/models{path}" if path.strip("/") else ""
        path = re.sub(r"/models/([^/]+)/versions/", r"/v1/models/\1/versions/", path)
    for pattern, means in _PATHS:
        if (match := pattern.fullmatch(path)) is not None:
            prefix, model, version = match.groups()
            named = protocol or scheme_protocol or means
            return Target(host, port, named, unquote(model), version or "", tls, prefix.rstrip("/"))
    raise _not_an_address(text)


def _scheme(text: str) -> tuple[str, str]:
    scheme, separator, rest = text.partition("://")
    return (scheme.lower(), rest) if separator else ("", text)


def _not_an_address(text: str) -> LongboatError:
    return LongboatError(
        f"{text!r} is not a server address",
        "use HOST:PORT, http://HOST:8501/v1/models/NAME, http://HOST:8501/v2/models/NAME or grpc://HOST:8500/NAME",
    )
