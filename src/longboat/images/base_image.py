"""The image below: from a registry, from an OCI layout, or from an archive that docker or podman saved.

Only names and the configuration are read at first. A layer is fetched when somebody needs its bytes:
to look for Python in it, or to send it to a registry that does not have it yet.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from longboat.images import image_name, registry
from longboat.images.python_packages import WheelTarget
from longboat.runtime.errors import FAILED, LongboatError

CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_LAYERS = {
    "application/vnd.docker.image.rootfs.diff.tar.gzip": LAYER,
    "application/vnd.docker.image.rootfs.diff.tar": "application/vnd.oci.image.layer.v1.tar",
}
"""The same bytes under the names that OCI gave them."""
_PYTHON = re.compile(r"(?:\./)?usr/(?:local/)?bin/python(3\.\d+)")
_MUSL = re.compile(r"(?:\./)?(?:usr/)?lib/ld-musl-\w+\.so\.1")


@dataclass(frozen=True)
class Blob:
    """What a manifest points at."""

    kind: str
    digest: str
    size: int

    @property
    def value(self) -> dict[str, object]:
        return {"mediaType": self.kind, "digest": self.digest, "size": self.size}


class BaseImage:
    """`name` and `digest` say which image it is; `blobs` is a directory that keeps what was fetched."""

    def __init__(self, name: str, digest: str, config: Mapping[str, Any], layers: tuple[Blob, ...], blobs: str) -> None:
        self.name = name
        self.digest = digest
        self.config = config
        self.layers = layers
        self._blobs = blobs

    def path(self, blob: Blob) -> str:
        """The file with a layer's bytes; fetched if it is not there."""
        path = blob_path(self._blobs, blob.digest)
        if not os.path.exists(path):
            os.makedirs(self._blobs, exist_ok=True)
            self._fetch(blob.digest, path)
        return path

    def _fetch(self, digest: str, path: str) -> None:
        raise LongboatError(f"{self.name}: the layer {digest} is missing from it", "save the image again", FAILED)

    @property
    def repository(self) -> image_name.ImageName | None:
        """Where a registry may take its layers over from."""
        return None

    def target(self, architecture: str) -> WheelTarget:
        """For which Python and which C library packages must be made."""
        inside = self.config.get("config") or {}
        told = dict(each.partition("=")[::2] for each in inside.get("Env") or ())
        version = re.match(r"3\.\d+", str(told.get("PYTHON_VERSION", "")))
        if version:  # the official images say so
            alpine = any("alpine" in text or "apk add" in text for text in map(str, self.config.get("history") or ()))
            return WheelTarget(version[0], architecture, "musl" if alpine else "glibc")
        python, libc = "", "glibc"
        for blob in reversed(self.layers):
            for name in _names(self.path(blob), blob.kind, self.name):
                found = _PYTHON.fullmatch(name)
                python = python or (found[1] if found else "")
                libc = "musl" if _MUSL.fullmatch(name) else libc
        if not python:
            raise LongboatError(
                f"{self.name} has no Python in /usr/bin or /usr/local/bin",
                "name a base image with Python 3.9 or newer, or say which it is: --python 3.12",
            )
        return WheelTarget(python, architecture, libc)


class _FromRegistry(BaseImage):
    def __init__(self, repository: registry.Repository, *rest: Any) -> None:
        super().__init__(*rest)
        self._repository = repository

    def _fetch(self, digest: str, path: str) -> None:
        self._repository.save(digest, path)

    @property
    def repository(self) -> image_name.ImageName | None:
        return self._repository.reference


def find(text: str, platform: str, blobs: str, environ: Mapping[str, str], insecure: str = "") -> BaseImage:
    """The base image that is meant: a file or directory if there is one of that name, else one in a registry.
    `insecure` is the one registry that is trusted without proof; `*` any."""
    if os.path.exists(text):
        return _from_file(text, platform, blobs)
    if text.endswith(".tar") or text.startswith(("./", "/", "~")):
        raise LongboatError(f"there is no {text}", "an image from a file: an OCI layout, or what `docker save` writes")
    named = image_name.parse(text)
    repository = registry.Repository(named, environ, insecure in ("*", named.registry))
    manifest = repository.manifest(named.asked)
    if manifest is None:
        raise LongboatError(f"there is no image {named} in {named.registry}", "see its tags there", FAILED)
    if manifest.kind in registry.INDEXES:
        chosen = _chosen(manifest.value, platform, str(named))
        manifest = repository.manifest(chosen)
        if manifest is None:
            raise LongboatError(f"{named.registry} has no {chosen}, which {named} names", code=FAILED)
    if manifest.kind not in registry.MANIFESTS:
        raise LongboatError(
            f"{named} is kept in a form that is no longer in use: {manifest.kind}", "push it anew", FAILED
        )
    config = _checked(json.loads(repository.blob(manifest.value["config"]["digest"])), platform, str(named))
    return _FromRegistry(repository, str(named), manifest.digest, config, _layers(manifest.value), blobs)


def blob_path(blobs: str, digest: str) -> str:
    return os.path.join(blobs, digest.replace(":", "-"))


def _chosen(index: Mapping[str, Any], platform: str, name: str) -> str:
    there: dict[str, str] = {}
    for each in index.get("manifests", ()):
        told = each.get("platform") or {}
        if told.get("os", "linux") != "unknown":
            there.setdefault(f"{told.get('os', 'linux')}/{told.get('architecture', 'amd64')}", str(each["digest"]))
    if platform not in there:
        raise LongboatError(f"{name} is not made for {platform}", f"there is {', '.join(there)}: --platform")
    return there[platform]


def _checked(config: dict[str, Any], platform: str, name: str) -> dict[str, Any]:
    found = f"{config.get('os', 'linux')}/{config.get('architecture', 'amd64')}"
    if found != platform:
        raise LongboatError(f"{name} is made for {found}, not for {platform}", f"--platform {found}")
    return config


def _layers(manifest: Mapping[str, Any]) -> tuple[Blob, ...]:
    return tuple(
        Blob(_LAYERS.get(each["mediaType"], str(each["mediaType"])), str(each["digest"]), int(each["size"]))
        for each in manifest["layers"]
    )


def _from_file(path: str, platform: str, blobs: str) -> BaseImage:
    os.makedirs(blobs, exist_ok=True)
    try:
        with _opened(path) as files:
            try:
                index = json.loads(files.read("index.json"))
            except KeyError:
                return _docker_archive(files, path, platform, blobs)
            return _oci_layout(files, index, path, platform, blobs)
    except (OSError, ValueError, KeyError, TypeError, tarfile.TarError) as error:
        raise LongboatError(
            f"{path} is no image: {error}", "an OCI layout (a directory or a tar), or what `docker save` writes"
        ) from None


def _oci_layout(files: _Files, index: dict[str, Any], path: str, platform: str, blobs: str) -> BaseImage:
    while True:
        entries = index["manifests"]
        if len(entries) == 1:
            digest = str(entries[0]["digest"])
        else:
            digest = _chosen(index, platform, path)
        manifest = json.loads(files.read(_inside(digest)))
        if "manifests" not in manifest:
            break
        index = manifest
    config = _checked(json.loads(files.read(_inside(manifest["config"]["digest"]))), platform, path)
    layers = _layers(manifest)
    for blob in layers:
        target = blob_path(blobs, blob.digest)
        if not os.path.exists(target):
            with files.open(_inside(blob.digest)) as source:
                _keep(source, target, blob.digest)
    return BaseImage(path, digest, config, layers, blobs)


def _docker_archive(files: _Files, path: str, platform: str, blobs: str) -> BaseImage:
    (told,) = json.loads(files.read("manifest.json"))
    text = files.read(told["Config"])
    config = _checked(json.loads(text), platform, path)
    layers = []
    for name, diff in zip(told["Layers"], config["rootfs"]["diff_ids"], strict=True):
        layers.append(_remembered(blobs, diff) or _compressed(files, name, blobs, diff))
    return BaseImage(path, "sha256:" + hashlib.sha256(text).hexdigest(), config, tuple(layers), blobs)


def _remembered(blobs: str, diff: str) -> Blob | None:
    """A layer of an archive that was compressed before."""
    try:
        with open(blob_path(blobs, diff) + ".json", encoding="utf-8") as file:
            found = Blob(**json.load(file))
        return found if os.path.exists(blob_path(blobs, found.digest)) else None
    except (OSError, ValueError, TypeError):
        return None


def _compressed(files: _Files, name: str, blobs: str, diff: str) -> Blob:
    """A layer that an archive holds as a plain tar; compressed the same way each time."""
    unfinished = os.path.join(blobs, f"layer.{os.getpid()}.new")
    try:
        with files.open(name) as source, open(unfinished, "wb") as raw:
            head = source.read(2)
            if head == b"\x1f\x8b":
                raw.write(head)
                shutil.copyfileobj(source, raw, 1 << 20)
            else:
                with gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed:
                    packed.write(head)
                    shutil.copyfileobj(source, packed, 1 << 20)
        with open(unfinished, "rb") as file:
            digest = "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
        size = os.path.getsize(unfinished)
        os.replace(unfinished, blob_path(blobs, digest))
        blob = Blob(LAYER, digest, size)
        with open(unfinished, "w", encoding="utf-8") as note:
            json.dump({"kind": blob.kind, "digest": digest, "size": size}, note)
        os.replace(unfinished, blob_path(blobs, diff) + ".json")
    finally:
        if os.path.exists(unfinished):
            os.unlink(unfinished)
    return blob


def _keep(source: IO[bytes], target: str, digest: str) -> None:
    unfinished = f"{target}.{os.getpid()}.new"
    try:
        with open(unfinished, "wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
        with open(unfinished, "rb") as file:
            if "sha256:" + hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise ValueError(f"{digest} is damaged")
        os.replace(unfinished, target)
    finally:
        if os.path.exists(unfinished):
            os.unlink(unfinished)


def _inside(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


class _Files:
    """A directory or a tar, read by name."""

    def __init__(self, path: str, tar: tarfile.TarFile | None) -> None:
        self._path = path
        self._tar = tar

    def open(self, name: str) -> IO[bytes]:
        if self._tar is None:
            try:
                return open(os.path.join(self._path, name), "rb")
            except FileNotFoundError:
                raise KeyError(name) from None
        found = self._tar.extractfile(name)
        if found is None:
            raise KeyError(name)
        return found

    def read(self, name: str) -> bytes:
        with self.open(name) as file:
            return file.read()


@contextmanager
def _opened(path: str) -> Iterator[_Files]:
    if os.path.isdir(path):
        yield _Files(path, None)
    else:
        with tarfile.open(path) as tar:
            yield _Files(path, tar)


def _names(path: str, kind: str, image: str) -> Iterator[str]:
    if kind.endswith("zstd"):
        raise LongboatError(
            f"{image} has layers compressed with zstd, which cannot be looked into", "say its Python: --python 3.12"
        )
    try:
        with tarfile.open(path, "r|*") as tar:
            for entry in tar:
                yield entry.name
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise LongboatError(f"{image}: a layer cannot be read: {error}", "say its Python: --python 3.12") from None
