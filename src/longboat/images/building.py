"""Builds a job's image and pushes it.

Nothing is done twice: an image with the same key is reused, packages are installed once per list of requirements, and
blobs that the registry has are not uploaded. Longboat builds the image itself; if a package has no wheel, it calls
docker, podman or buildah.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from longboat.images import base_image as bases
from longboat.images import builders, layers, push_record, python_packages, registry
from longboat.images import oci_image as images
from longboat.images.image_name import ImageName
from longboat.runs import formatting
from longboat.runtime import atomic_file
from longboat.runtime.errors import FAILED, LongboatError
from longboat.runtime.light_dataclasses import dataclass, replace
from longboat.spec.code_tree import code_files

FORMAT = "1"
"""Version of the image format, part of the key. Increase it if the same input gives a different image."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class BuildOrder:
    """What to build, on which base, and where to put it."""

    job: str
    code: str
    base: str
    requirements: tuple[str, ...] = ()
    target: ImageName | None = None
    """Name to push it to. Without a tag, the tag is the key."""
    push: bool = True
    output: str = ""
    """File to write it to."""
    platform: str = "linux/amd64"
    python: str = ""
    user: int = 1000
    group: int = 1000
    tool: str = ""
    """Builder: docker, podman, buildah, or none for built-in; empty: built-in, else the first available tool."""
    insecure: bool = False

    @property
    def architecture(self) -> str:
        return self.platform.partition("/")[2]


@dataclass(frozen=True)
class BuiltImage:
    reference: ImageName
    """Name with tag."""
    digest: str
    key: str
    by: str
    """Builder: longboat or a tool; empty if the image existed."""
    pushed: bool
    size: int = 0
    sent: int = 0
    """Uploaded bytes."""
    existed: bool = False
    """The registry had the image; nothing was built."""

    @property
    def exact(self) -> str:
        """The image by digest, as pods name it."""
        return str(self.reference.at(self.digest))


def build(order: BuildOrder, home: str, environ: Mapping[str, str], say: Say) -> BuiltImage:
    """Build the image, write it to a file and push it, as ordered."""
    try:
        return _build(order, home, environ, say)
    except OSError as error:  # for example an unreadable file or a full disk
        raise LongboatError(f"cannot build the image: {error}", code=FAILED) from None


def _build(order: BuildOrder, home: str, environ: Mapping[str, str], say: Say) -> BuiltImage:
    if not order.push and not order.output and order.tool in ("", "none"):
        raise LongboatError(
            "the image would be neither pushed nor written", "push it, or write it to a file: -o image.tar"
        )
    when = layers.epoch(environ)
    with _workshop(home) as shop:
        tree = _packed(order, when, shop)
        say(f"code: {len(tree.names)} files, {formatting.size(tree.layer.size)}")
        if order.tool in builders.TOOLS:
            return _by_tool(order, order.tool, "", tree, home, environ, say)
        base = bases.find(order.base, order.platform, shop.blobs, environ, _trusted(order))
        key = _key(order, base.digest, tree)
        order, target = _named(order, key)
        existing = _existing(order, key, environ)
        if existing is not None:
            return existing
        try:
            image = _composed(order, base, tree, key, shop, say)
        except python_packages.NoWheel as error:
            tool = builders.installed_tool() if not order.tool else ""
            if not tool:
                raise
            say(f"{error.message}\nbuilding the image with {tool} instead")
            return _by_tool(order, tool, key, tree, home, environ, say)
        if order.output:
            images.write(image, order.output, target, lambda blob: _path(image, base, blob), when)
            say(f"{order.output}: {formatting.size(os.path.getsize(order.output))}")
        sent = _pushed(order, image, base, environ, say) if order.push else 0
        size = sum(blob.size for blob in image.blobs)
        built = BuiltImage(target, image.digest, key, "longboat", order.push, size, sent)
        _remember(built, order, home)
        return built


def remove(made: push_record.PushedImage, home: str, environ: Mapping[str, str]) -> bool:
    """Delete the image from its registry; False if it did not exist. RegistryError if the registry refuses."""
    from longboat.images.image_name import parse

    repository = registry.Repository(parse(made.reference), environ, made.insecure, "pull,push,delete")
    gone = repository.delete(made.digest)
    push_record.forget(home, made)
    return gone


def _trusted(order: BuildOrder) -> str:
    """The registry that --insecure applies to: the one pushed to, not the base's."""
    if not order.insecure:
        return ""
    return order.target.registry if order.target is not None else "*"


# Reuse of what exists.


def _key(order: BuildOrder, base: str, tree: _Tree) -> str:
    parts = [FORMAT, base, order.platform, order.python, f"{order.user}:{order.group}", str(tree.when)]
    parts.append(tree.layer.diff_id)
    return hashlib.sha256("\0".join([*parts, *order.requirements]).encode()).hexdigest()[:16]


def _named(order: BuildOrder, key: str) -> tuple[BuildOrder, ImageName]:
    """The order with name and tag. A file needs them too, so that the loaded image has a name."""
    target = order.target or ImageName("localhost", order.job)
    target = target if target.tag else target.tagged(key)
    return replace(order, target=target), target


def _existing(order: BuildOrder, key: str, environ: Mapping[str, str]) -> BuiltImage | None:
    """The image in the registry under this name, if it has the same key."""
    if order.target is None or not order.push or order.output:
        return None
    repository = registry.Repository(order.target, environ, order.insecure, "pull,push")
    manifest = repository.manifest(order.target.tag)
    if manifest is None or manifest.kind not in registry.MANIFESTS:
        return None
    config = json.loads(repository.blob(manifest.value["config"]["digest"]))
    labels = (config.get("config") or {}).get("Labels") or {}
    if labels.get(images.KEY) != key:
        return None
    return BuiltImage(order.target, manifest.digest, key, "", True, existed=True)


# The built-in builder.


@dataclass(frozen=True)
class _Tree:
    """The code directory: its files and their layer."""

    names: tuple[str, ...]
    layer: layers.Layer
    when: int
    """Modification time of all files in layers."""


def _packed(order: BuildOrder, when: int, shop: _Shop) -> _Tree:
    names = tuple(code_files(order.code))
    files = layers.tree(order.code, images.CODE.lstrip("/"), names)
    return _Tree(names, layers.write(files, os.path.join(shop.work, "code.tar.gz"), when), when)


@dataclass(frozen=True)
class _Shop:
    """Directories of a build: two caches, and one for temporary files."""

    blobs: str
    layers: str
    work: str


@contextmanager
def _workshop(home: str) -> Iterator[_Shop]:
    root = push_record.place(home)
    shop = _Shop(os.path.join(root, "blobs"), os.path.join(root, "layers"), "")
    try:
        for directory in (shop.blobs, shop.layers):
            os.makedirs(directory, exist_ok=True)
        work = tempfile.mkdtemp(prefix="build-", dir=root)
    except OSError as error:
        raise LongboatError(
            f"cannot write to {root}: {error.strerror}", "set LONGBOAT_HOME to another directory"
        ) from None
    try:
        yield replace(shop, work=work)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _composed(
    order: BuildOrder, base: bases.BaseImage, tree: _Tree, key: str, shop: _Shop, say: Say
) -> images.OciImage:
    added = {}
    if order.requirements:
        added["packages"] = _packages(order, base, tree, shop, say)
    added["code"] = tree.layer
    labels = {
        images.KEY: key,
        "org.opencontainers.image.title": order.job,
        "org.opencontainers.image.base.name": base.name,
        "org.opencontainers.image.base.digest": base.digest,
    }
    return images.compose(base, added, images.ImageConfig(f"{order.user}:{order.group}", labels, tree.when))


def _packages(order: BuildOrder, base: bases.BaseImage, tree: _Tree, shop: _Shop, say: Say) -> layers.Layer:
    target = (
        python_packages.WheelTarget(order.python, order.architecture)
        if order.python
        else base.target(order.architecture)
    )
    parts = [FORMAT, target.python, target.architecture, target.libc, str(tree.when), *order.requirements]
    if python_packages.uses_tree(order.requirements):
        parts.append(tree.layer.diff_id)
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    path, note = (os.path.join(shop.layers, f"{key}{ending}") for ending in (".tar.gz", ".json"))
    if os.path.exists(note) and os.path.exists(path):
        with open(note, encoding="utf-8") as file:
            say("packages: unchanged")
            return layers.Layer(path=path, **json.load(file))
    say(f"packages: {' '.join(order.requirements)} for Python {target.python}")
    made = os.path.join(shop.work, "packages")
    python_packages.install(order.requirements, target, made, order.code)
    layer = layers.write(layers.tree(made, images.PACKAGES.lstrip("/"), python_packages.files(made)), path, tree.when)
    atomic_file.write(note, json.dumps({"digest": layer.digest, "diff_id": layer.diff_id, "size": layer.size}))
    say(f"packages: {formatting.size(layer.size)}")
    return layer


def _path(image: images.OciImage, base: bases.BaseImage, blob: bases.Blob) -> str:
    return image.own.get(blob.digest) or base.path(blob)


def _pushed(
    order: BuildOrder, image: images.OciImage, base: bases.BaseImage, environ: Mapping[str, str], say: Say
) -> int:
    assert order.target is not None
    target, source = order.target, base.repository
    beside = source.repository if source is not None and source.registry == target.registry else ""
    repository = registry.Repository(target, environ, order.insecure, "pull,push", beside)
    sent = 0
    for blob in image.blobs:
        if repository.has(blob.digest):
            continue
        if repository.takes_over(blob.digest):
            continue
        say(f"uploading {formatting.size(blob.size)} to {target.registry}")
        repository.upload(blob.digest, Path(_path(image, base, blob)))
        sent += blob.size
    if not repository.has(image.config_digest):
        repository.upload(image.config_digest, image.config)
    repository.put(registry.ImageManifest(registry.MANIFESTS[0], image.digest, image.manifest), target.tag)
    return sent


def _remember(built: BuiltImage, order: BuildOrder, home: str) -> None:
    if built.pushed:
        push_record.keep(home, str(built.reference), built.digest, order.job, built.size, order.insecure)


# Building with docker, podman or buildah.


def _by_tool(
    order: BuildOrder, tool: str, key: str, tree: _Tree, home: str, environ: Mapping[str, str], say: Say
) -> BuiltImage:
    """Build with a tool. Without a key the base's digest is unknown, and the base's name replaces it."""
    key = key or _key(order, order.base, tree)
    order, target = _named(order, key)
    existing = _existing(order, key, environ)
    if existing is not None:
        return existing
    recipe = builders.DockerBuild(
        base=order.base,
        target=str(target),
        platform=order.platform,
        requirements=order.requirements,
        user=f"{order.user}:{order.group}",
        labels={images.KEY: key},
        when=tree.when,
        push=order.push,
        output=order.output,
        insecure=order.insecure,
    )
    digest = builders.build(tool, recipe, order.code, tree.names, environ, say)
    built = BuiltImage(target, digest, key, tool, order.push)
    _remember(built, order, home)
    return built
