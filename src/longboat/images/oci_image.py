"""Composes an image from base and layers: manifest and configuration, or one file that all tools can load.

Pure, except for writing that file. The same base and layers give the same digest.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from longboat.images.base_image import CONFIG, LAYER, BaseImage, Blob
from longboat.images.image_name import ImageName
from longboat.images.layers import Layer
from longboat.images.registry import MANIFESTS
from longboat.runtime import atomic_file
from longboat.runtime.kube_client import names
from longboat.runtime.light_dataclasses import dataclass

KEY = "dev.longboat.key"
"""Label with the digest of the input. An image with the same key is not built again."""
CODE = names.BUILT
PACKAGES = "/opt/longboat/packages"


@dataclass(frozen=True)
class ImageConfig:
    """Settings added to the base's configuration."""

    user: str
    labels: Mapping[str, str]
    created: int


@dataclass(frozen=True)
class OciImage:
    manifest: bytes
    config: bytes
    blobs: tuple[Blob, ...]
    """Layers of the base, then the added ones."""
    own: Mapping[str, str]
    """Digest -> file, for the added layers."""

    @property
    def digest(self) -> str:
        return _digest(self.manifest)

    @property
    def config_digest(self) -> str:
        return _digest(self.config)


def compose(base: BaseImage, layers: Mapping[str, Layer], settings: ImageConfig) -> OciImage:
    """The image with added layers. layers: name -> layer, lowest first."""
    config = _config(base.config, layers, settings)
    text = _json(config)
    blobs = (*base.layers, *(Blob(LAYER, layer.digest, layer.size) for layer in layers.values()))
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFESTS[0],
        "config": Blob(CONFIG, _digest(text), len(text)).value,
        "layers": [blob.value for blob in blobs],
        "annotations": dict(sorted(settings.labels.items())),
    }
    return OciImage(_json(manifest), text, blobs, {layer.digest: layer.path for layer in layers.values()})


def _config(base: Mapping[str, Any], layers: Mapping[str, Layer], settings: ImageConfig) -> dict[str, Any]:
    inside = dict(base.get("config") or {})
    variables = dict(each.partition("=")[::2] for each in inside.get("Env") or ())
    if "packages" in layers:
        rest = variables.get("PYTHONPATH")
        variables["PYTHONPATH"] = f"{PACKAGES}:{rest}" if rest else PACKAGES
        path = variables.get("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        variables["PATH"] = f"{path}:{PACKAGES}/bin"
    inside["Env"] = [f"{name}={value}" for name, value in variables.items()]
    inside["User"] = settings.user
    inside["WorkingDir"] = CODE
    inside["Labels"] = dict(sorted({**(inside.get("Labels") or {}), **settings.labels}.items()))
    created = datetime.fromtimestamp(settings.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    history = [
        *(base.get("history") or ()),
        *({"created": created, "created_by": f"longboat build: {w}"} for w in layers),
    ]
    diffs = [*base["rootfs"]["diff_ids"], *(layer.diff_id for layer in layers.values())]
    kept = {key: base[key] for key in ("architecture", "os", "variant", "os.version") if key in base}
    rootfs = {"type": "layers", "diff_ids": diffs}
    return {**kept, "created": created, "config": inside, "rootfs": rootfs, "history": history}


def write(image: OciImage, path: str, name: ImageName, path_of: Callable[[Blob], str], when: int) -> None:
    """Write the image as a tar: an OCI layout for `ctr`, `podman` and `skopeo`, plus a manifest for `docker load`."""
    entry: dict[str, object] = {**Blob(MANIFESTS[0], image.digest, len(image.manifest)).value}
    config = json.loads(image.config)
    entry["platform"] = {"architecture": config["architecture"], "os": config["os"]}
    entry["annotations"] = {"io.containerd.image.name": str(name), "org.opencontainers.image.ref.name": name.asked}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry]}
    listed = {
        "Config": _inside(image.config_digest),
        "RepoTags": [str(name)],
        "Layers": [_inside(blob.digest) for blob in image.blobs],
    }
    texts = {
        _inside(image.digest): image.manifest,
        _inside(image.config_digest): image.config,
        "index.json": _json(index),
        "manifest.json": _json([listed]),
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
    }
    files = {_inside(blob.digest): path_of(blob) for blob in image.blobs}
    with (
        atomic_file.replacing(path) as unfinished,
        tarfile.open(unfinished, "w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for folder in ("blobs", "blobs/sha256"):
            info = _info(folder, 0, when)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(info)
        for inside in sorted({*texts, *files}):
            if inside in texts:
                tar.addfile(_info(inside, len(texts[inside]), when), io.BytesIO(texts[inside]))
            else:
                with open(files[inside], "rb") as file:
                    tar.addfile(_info(inside, os.path.getsize(files[inside]), when), file)


def _info(name: str, size: int, when: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = size, when, 0o644
    return info


def _inside(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _digest(text: bytes) -> str:
    return "sha256:" + hashlib.sha256(text).hexdigest()


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
