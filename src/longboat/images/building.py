"""A job's image, from the order to the registry.

What is there already is not made again: an image with the same key stays as it is, packages are
installed once for a list of requirements, and a blob that the registry has is not sent. Who builds
is decided here too: Longboat writes the image itself unless it cannot.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from longboat.images import base_image as bases
from longboat.images import builders, layers, push_record, python_packages, registry
from longboat.images import oci_image as images
from longboat.images.image_name import ImageName
from longboat.runs import formatting
from longboat.runtime.errors import FAILED, LongboatError
from longboat.spec.code_tree import code_files

FORMAT = "1"
"""Raised when images of the same input come out different."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class BuildOrder:
    """What is wanted."""

    job: str
    code: str
    base: str
    requirements: tuple[str, ...] = ()
    target: ImageName | None = None
    """Where it is pushed to, and what it is called; without a tag, the tag is the key."""
    push: bool = True
    output: str = ""
    """A file to write it to."""
    platform: str = "linux/amd64"
    python: str = ""
    user: int = 1000
    group: int = 1000
    tool: str = ""
    """docker, podman, buildah, none; empty: none, and whichever is there where that cannot do it."""
    insecure: bool = False

    @property
    def architecture(self) -> str:
        return self.platform.partition("/")[2]


@dataclass(frozen=True)
class BuiltImage:
    reference: ImageName
    """With its tag."""
    digest: str
    key: str
    by: str
    """Who built it; "nobody" when it was there."""
    pushed: bool
    size: int = 0
    sent: int = 0
    """Bytes that the registry did not have."""

    @property
    def exact(self) -> str:
        """The image by its digest, as pods name it."""
        return str(self.reference.at(self.digest))


def build(order: BuildOrder, home: str, environ: Mapping[str, str], say: Say) -> BuiltImage:
    """Builds, writes and pushes, as ordered."""
    try:
        return _build(order, home, environ, say)
    except OSError as error:  # a file that cannot be read, or goes while it is; a disk that is full
        raise LongboatError(f"the image could not be built: {error}", code=FAILED) from None


def _build(order: BuildOrder, home: str, environ: Mapping[str, str], say: Say) -> BuiltImage:
    if not order.push and not order.output and order.tool in ("", "none"):
        raise LongboatError("nothing would become of the image", "push it, or write it to a file: -o image.tar")
    when = layers.epoch(environ)
    with _workshop(home) as shop:
        tree = _packed(order, when, shop)
        say(f"code: {len(tree.names)} files, {formatting.size(tree.layer.size)}")
        if order.tool in builders.TOOLS:
            return _by_tool(order, order.tool, "", tree, home, environ, say)
        found = bases.find(order.base, order.platform, shop.blobs, environ, _trusted(order))
        key = _key(order, found.digest, tree)
        order, target = _named(order, key)
        there = _there(order, key, environ)
        if there is not None:
            return there
        try:
            image = _composed(order, found, tree, key, shop, say)
        except python_packages.NoWheel as error:
            tool = builders.found() if not order.tool else ""
            if not tool:
                raise
            say(f"{error.message}\n{tool} builds the image instead")
            return _by_tool(order, tool, key, tree, home, environ, say)
        if order.output:
            images.write(image, order.output, target, lambda blob: _path(image, found, blob), when)
            say(f"{order.output}: {formatting.size(os.path.getsize(order.output))}")
        sent = _pushed(order, image, found, environ, say) if order.push else 0
        size = sum(blob.size for blob in image.blobs)
        built = BuiltImage(target, image.digest, key, "longboat", order.push, size, sent)
        _remember(built, order, home)
        return built


def remove(made: push_record.PushedImage, home: str, environ: Mapping[str, str]) -> bool:
    """From its registry; False: it was gone already. Refused is raised by a registry that does not delete."""
    from longboat.images.image_name import parse

    repository = registry.Repository(parse(made.reference), environ, made.insecure, "pull,push,delete")
    gone = repository.delete(made.digest)
    push_record.forget(home, made)
    return gone


def _trusted(order: BuildOrder) -> str:
    """--insecure is said of the registry that is pushed to; the base's own is not meant, unless it is the same."""
    if not order.insecure:
        return ""
    return order.target.registry if order.target is not None else "*"


# What is the same need not be done.


def _key(order: BuildOrder, base: str, tree: _Tree) -> str:
    parts = [FORMAT, base, order.platform, order.python, f"{order.user}:{order.group}", str(tree.when)]
    parts.append(tree.layer.diff_id)
    return hashlib.sha256("\0".join([*parts, *order.requirements]).encode()).hexdigest()[:16]


def _named(order: BuildOrder, key: str) -> tuple[BuildOrder, ImageName]:
    """The order with a name and a tag: a file needs them too, or who loads it could not say which image is meant."""
    target = order.target or ImageName("localhost", order.job)
    target = target if target.tag else target.tagged(key)
    return replace(order, target=target), target


def _there(order: BuildOrder, key: str, environ: Mapping[str, str]) -> BuiltImage | None:
    """The image that the registry has under this name, if it was made from the same."""
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
    return BuiltImage(order.target, manifest.digest, key, "nobody", True)


# Writing it ourselves.


@dataclass(frozen=True)
class _Tree:
    """The code tree: its files, and the layer that they make."""

    names: tuple[str, ...]
    layer: layers.Layer
    when: int
    """How old files are said to be."""


def _packed(order: BuildOrder, when: int, shop: _Shop) -> _Tree:
    names = tuple(code_files(order.code))
    files = layers.tree(order.code, images.CODE.lstrip("/"), names)
    return _Tree(names, layers.write(files, os.path.join(shop.work, "code.tar.gz"), when), when)


@dataclass(frozen=True)
class _Shop:
    """Directories: what may be kept, and what is of this build alone."""

    blobs: str
    layers: str
    work: str


@contextmanager
def _workshop(home: str) -> Iterator[_Shop]:
    place = push_record.place(home)
    shop = _Shop(os.path.join(place, "blobs"), os.path.join(place, "layers"), "")
    try:
        for directory in (shop.blobs, shop.layers):
            os.makedirs(directory, exist_ok=True)
        work = tempfile.mkdtemp(prefix="build-", dir=place)
    except OSError as error:
        raise LongboatError(f"{place} cannot be written: {error.strerror}", "set LONGBOAT_HOME to another") from None
    try:
        yield replace(shop, work=work)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _composed(
    order: BuildOrder, found: bases.BaseImage, tree: _Tree, key: str, shop: _Shop, say: Say
) -> images.OciImage:
    added = {}
    if order.requirements:
        added["packages"] = _packages(order, found, tree, shop, say)
    added["code"] = tree.layer
    labels = {
        images.KEY: key,
        "org.opencontainers.image.title": order.job,
        "org.opencontainers.image.base.name": found.name,
        "org.opencontainers.image.base.digest": found.digest,
    }
    return images.compose(found, added, images.ImageConfig(f"{order.user}:{order.group}", labels, tree.when))


def _packages(order: BuildOrder, found: bases.BaseImage, tree: _Tree, shop: _Shop, say: Say) -> layers.Layer:
    target = (
        python_packages.WheelTarget(order.python, order.architecture)
        if order.python
        else found.target(order.architecture)
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
    with open(f"{note}.{os.getpid()}", "w", encoding="utf-8") as file:
        json.dump({"digest": layer.digest, "diff_id": layer.diff_id, "size": layer.size}, file)
    os.replace(f"{note}.{os.getpid()}", note)
    say(f"packages: {formatting.size(layer.size)}")
    return layer


def _path(image: images.OciImage, found: bases.BaseImage, blob: bases.Blob) -> str:
    return image.own.get(blob.digest) or found.path(blob)


def _pushed(
    order: BuildOrder, image: images.OciImage, found: bases.BaseImage, environ: Mapping[str, str], say: Say
) -> int:
    assert order.target is not None
    target, source = order.target, found.repository
    beside = source.repository if source is not None and source.registry == target.registry else ""
    repository = registry.Repository(target, environ, order.insecure, "pull,push", beside)
    sent = 0
    for blob in image.blobs:
        if repository.has(blob.digest):
            continue
        if repository.takes_over(blob.digest):
            continue
        say(f"sending {formatting.size(blob.size)} to {target.registry}")
        repository.upload(blob.digest, path=_path(image, found, blob))
        sent += blob.size
    if not repository.has(image.config_digest):
        repository.upload(image.config_digest, data=image.config)
    repository.put(registry.ImageManifest(registry.MANIFESTS[0], image.digest, image.manifest), target.tag)
    return sent


def _remember(built: BuiltImage, order: BuildOrder, home: str) -> None:
    if built.pushed:
        push_record.keep(home, str(built.reference), built.digest, order.job, built.size, order.insecure)


# Letting another write it.


def _by_tool(
    order: BuildOrder, tool: str, key: str, tree: _Tree, home: str, environ: Mapping[str, str], say: Say
) -> BuiltImage:
    """Without a key, the base's digest is not known: its name stands for it."""
    key = key or _key(order, order.base, tree)
    order, target = _named(order, key)
    there = _there(order, key, environ)
    if there is not None:
        return there
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
