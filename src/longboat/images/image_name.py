"""Image names, `registry/repository:tag@digest`, parsed as docker and Kubernetes do."""

from __future__ import annotations

import re

from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import dataclass, replace

HUB = "docker.io"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LOCAL = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?")


@dataclass(frozen=True)
class ImageName:
    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    @property
    def host(self) -> str:
        """Host name of the registry. Docker Hub's differs from its registry name."""
        return "registry-1.docker.io" if self.registry == HUB else self.registry

    @property
    def is_local(self) -> bool:
        """Whether the registry is on this machine, where plain http is safe."""
        return _LOCAL.fullmatch(self.registry) is not None

    @property
    def name(self) -> str:
        """The name without tag and digest."""
        return f"{self.registry}/{self.repository}"

    @property
    def asked(self) -> str:
        """Tag or digest to request the manifest by."""
        return self.digest or self.tag or "latest"

    def tagged(self, tag: str) -> ImageName:
        return replace(self, tag=tag, digest="")

    def at(self, digest: str) -> ImageName:
        """The image by digest instead of tag."""
        return replace(self, tag="", digest=digest)

    def __str__(self) -> str:
        return self.name + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")


def parse(text: str) -> ImageName:
    """Parse an image name. LongboatError if it is not valid."""
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise _wrong(text, f"digest {digest!r} is not sha256: and 64 hexadecimal digits")
    first, slash, path = rest.partition("/")
    if slash and (first == "localhost" or "." in first or ":" in first):
        registry, rest = first, path
    else:
        registry = HUB
    repository, colon, tag = rest.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise _wrong(text, f"tag {tag!r} may only have letters, digits, `_`, `.` and `-`")
    if registry in (HUB, "index.docker.io"):
        registry = HUB
        repository = repository if "/" in repository else f"library/{repository}"
    if not _REPOSITORY.fullmatch(repository):
        why = (
            "it has capital letters" if repository != repository.lower() else f"{repository!r} is not a repository name"
        )
        raise _wrong(text, why)
    return ImageName(registry, repository, tag, digest)


def _wrong(text: str, why: str) -> LongboatError:
    return LongboatError(
        f"{text!r} is not an image name: {why}", "use a form such as registry.example.com/team/name:tag"
    )
