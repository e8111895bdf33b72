"""Reads a base image from a registry, an OCI layout or a `docker save` archive.

At first only manifest and configuration are read. A layer is downloaded when its bytes are needed: to find Python in
it, or to upload it to a registry that does not have it.
"""

from __future__ import annotations

import contextlib
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
from typing import IO, Any

from longboat.images import image_name, registry
from longboat.images.python_packages import WheelTarget
from longboat.runtime import atomic_file
from longboat.runtime.errors import FAILED, LongboatError
from longboat.runtime.light_dataclasses import dataclass

CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_LAYERS = {
    "application/vnd.docker.image.rootfs.diff.tar.gzip": LAYER,
    "application/vnd.docker.image.rootfs.diff.tar": "application/vnd.oci.image.layer.v1.tar",
}
"""Docker's layer media types -> OCI's, for the same bytes."""
_PYTHON = re.compile(r"(?:\./)?usr/(?:local/)?bin/python(3\.\d+)")
_MUSL = re.compile(r"(?:\./)?(?:usr/)?lib/ld-musl-\w+\.so\.1")


@dataclass(frozen=True)
class Blob:
    """A descriptor in a manifest: media type, digest, size."""

    kind: str
    digest: str
    size: int

    @property
    def value(self) -> dict[str, object]:
        return {"mediaType": self.kind, "digest": self.digest, "size": self.size}


class BaseImage:
    """A base image. `blobs` is the cache directory for its layers."""

    def __init__(self, name: str, digest: str, config: Mapping[str, Any], layers: tuple[Blob, ...], blobs: str) -> None:
        self.name = name
        self.digest = digest
        self.config = config
        self.layers = layers
        self._blobs = blobs

    def path(self, blob: Blob) -> str:
        """The file with a layer's bytes; downloaded if it is not in the cache."""
        path = blob_path(self._blobs, blob.digest)
        if not os.path.exists(path):
            os.makedirs(self._blobs, exist_ok=True)
            self._fetch(blob.digest, path)
        return path

    def _fetch(self, digest: str, path: str) -> None:
        raise LongboatError(f"{self.name}: layer {digest} is missing", "save the image again", FAILED)

    @property
    def repository(self) -> image_name.ImageName | None:
        """Repository to mount its layers from, if it comes from a registry."""
        return None

    def target(self, architecture: str) -> WheelTarget:
        """Python version and C library that packages must match."""
        inside = self.config.get("config") or {}
        variables = dict(entry.partition("=")[::2] for entry in inside.get("Env") or ())
        version = re.match(r"3\.\d+", str(variables.get("PYTHON_VERSION", "")))
        if version:  # official Python images set it
            alpine = any("alpine" in text or "apk add" in text for text in map(str, self.config.get("history") or ()))
            return WheelTarget(version[0], architecture, "musl" if alpine else "glibc")
        python, libc = "", "glibc"
        for blob in reversed(self.layers):
            for name in _names(self.path(blob), blob.kind, self.name):
                match = _PYTHON.fullmatch(name)
                python = python or (match[1] if match else "")
                libc = "musl" if _MUSL.fullmatch(name) else libc
        if not python:
            raise LongboatError(
                f"{self.name} has no Python in /usr/bin or /usr/local/bin",
                "use a base image with Python 3.9 or newer, or set the version: --python 3.12",
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
    """The base image: a file or directory if it exists, else an image in a registry.

    insecure: the registry that may use plain http or an unverified certificate; `*` for any."""
    if os.path.exists(text):
        return _from_file(text, platform, blobs)
    if text.endswith(".tar") or text.startswith(("./", "/", "~")):
        raise LongboatError(f"{text} does not exist", "name an OCI layout, or an archive written by `docker save`")
    named = image_name.parse(text)
    repository = registry.Repository(named, environ, insecure in ("*", named.registry))
    manifest = repository.manifest(named.asked)
    if manifest is None:
        raise LongboatError(f"image {named} not found in {named.registry}", "check its name and tags", FAILED)
    if manifest.kind in registry.INDEXES:
        chosen = _chosen(manifest.value, platform, str(named))
        manifest = repository.manifest(chosen)
        if manifest is None:
            raise LongboatError(f"{named.registry} has no manifest {chosen} of {named}", code=FAILED)
    if manifest.kind not in registry.MANIFESTS:
        raise LongboatError(f"{named} has an unsupported manifest type: {manifest.kind}", "push it again", FAILED)
    config = _checked(json.loads(repository.blob(manifest.value["config"]["digest"])), platform, str(named))
    return _FromRegistry(repository, str(named), manifest.digest, config, _layers(manifest.value), blobs)


def blob_path(blobs: str, digest: str) -> str:
    return os.path.join(blobs, digest.replace(":", "-"))


def _chosen(index: Mapping[str, Any], platform: str, name: str) -> str:
    available: dict[str, str] = {}
    for entry in index.get("manifests", ()):
        entry_platform = entry.get("platform") or {}
        if entry_platform.get("os", "linux") != "unknown":
            available.setdefault(
                f"{entry_platform.get('os', 'linux')}/{entry_platform.get('architecture', 'amd64')}",
                str(entry["digest"]),
            )
    if platform not in available:
        raise LongboatError(f"{name} has no image for {platform}", f"use --platform with one of {', '.join(available)}")
    return available[platform]


def _checked(config: dict[str, Any], platform: str, name: str) -> dict[str, Any]:
    actual = f"{config.get('os', 'linux')}/{config.get('architecture', 'amd64')}"
    if actual != platform:
        raise LongboatError(f"{name} is an image for {actual}, not for {platform}", f"use --platform {actual}")
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
            f"{path} is not an image: {error}",
            "use an OCI layout (a directory or tar) or an archive written by `docker save`",
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
    (listing,) = json.loads(files.read("manifest.json"))
    text = files.read(listing["Config"])
    config = _checked(json.loads(text), platform, path)
    layers = []
    for name, diff in zip(listing["Layers"], config["rootfs"]["diff_ids"], strict=True):
        layers.append(_remembered(blobs, diff) or _compressed(files, name, blobs, diff))
    return BaseImage(path, "sha256:" + hashlib.sha256(text).hexdigest(), config, tuple(layers), blobs)


def _remembered(blobs: str, diff: str) -> Blob | None:
    """A layer of an archive that is already compressed in the cache."""
    try:
        with open(blob_path(blobs, diff) + ".json", encoding="utf-8") as file:
            blob = Blob(**json.load(file))
        return blob if os.path.exists(blob_path(blobs, blob.digest)) else None
    except (OSError, ValueError, TypeError):
        return None


def _compressed(files: _Files, name: str, blobs: str, diff: str) -> Blob:
    """Compress a layer of an archive, reproducibly."""
    path = os.path.join(blobs, f"layer.{os.getpid()}.new")
    try:
        with files.open(name) as source, open(path, "wb") as raw:
            head = source.read(2)
            if head == b"\x1f\x8b":
                raw.write(head)
                shutil.copyfileobj(source, raw, 1 << 20)
            else:
                with gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed:
                    packed.write(head)
                    shutil.copyfileobj(source, packed, 1 << 20)
        with open(path, "rb") as file:
            digest = "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
        blob = Blob(LAYER, digest, os.path.getsize(path))
        os.replace(path, blob_path(blobs, digest))  # its name is only known now
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    note = {"kind": blob.kind, "digest": digest, "size": blob.size}
    atomic_file.write(blob_path(blobs, diff) + ".json", json.dumps(note))
    return blob


def _keep(source: IO[bytes], target: str, digest: str) -> None:
    with atomic_file.replacing(target) as unfinished:
        with open(unfinished, "wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
        with open(unfinished, "rb") as file:
            if "sha256:" + hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise ValueError(f"{digest} is corrupt")


def _inside(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


class _Files:
    """Files of a directory or tar, by name."""

    def __init__(self, path: str, tar: tarfile.TarFile | None) -> None:
        self._path = path
        self._tar = tar

    def open(self, name: str) -> IO[bytes]:
        if self._tar is None:
            try:
                return open(os.path.join(self._path, name), "rb")
            except FileNotFoundError:
                raise KeyError(name) from None
        member = self._tar.extractfile(name)
        if member is None:
            raise KeyError(name)
        return member

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
        raise LongboatError(f"cannot find Python in {image}: its layers use zstd", "set the version: --python 3.12")
    try:
        with tarfile.open(path, "r|*") as tar:
            for entry in tar:
                yield entry.name
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise LongboatError(f"{image}: cannot read a layer: {error}", "set the version: --python 3.12") from None
