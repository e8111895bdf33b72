"""Container images without Docker: a layer is a tar, an image is a tar of layers that `ctr images import` reads.

A layer is written straight from packages, wheels or files, in one pass, as root's files whoever writes it, and with
the same bytes each time. What the cluster puts into its images is in `images`.
"""

import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

# Debian's old top directories are links into usr; packages still name both.
_MERGED = ("bin", "sbin", "lib", "lib64")
_NOT_NEEDED = (
    "usr/share/doc/",
    "usr/share/man/",
    "usr/share/info/",
    "usr/share/locale/",
    "usr/share/lintian/",
    "usr/share/bash-completion/",
    "usr/lib/python3.11/test/",
)


class Layer:
    """Entries under their final names; the last one given wins."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[tarfile.TarInfo, bytes]] = {}

    def directory(self, name: str, mode: int = 0o755) -> None:
        self._put(name, tarfile.DIRTYPE, mode)

    def link(self, name: str, target: str) -> None:
        self._put(name, tarfile.SYMTYPE, 0o777, target=target)

    def file(self, name: str, content: bytes, mode: int = 0o644) -> None:
        self._put(name, tarfile.REGTYPE, mode, content)

    def _put(self, name: str, kind: bytes, mode: int, content: bytes = b"", target: str = "") -> None:
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode, entry.linkname, entry.size = kind, mode, target, len(content)
        self._entries[name] = (entry, content)

    def debs(self, debs: Iterable[Path]) -> None:
        """All files of Debian packages but manuals and translations."""
        for name in _MERGED:
            self.directory(f"usr/{name}")
            self.link(name, f"usr/{name}")
        for deb in debs:
            unpacked = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(deb)], check=True, capture_output=True).stdout
            with tarfile.open(fileobj=io.BytesIO(unpacked)) as tar:
                for entry in tar:
                    self._take(tar, entry)

    def _take(self, tar: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        name = _merged(entry.name)
        if not name or name in _MERGED or name.startswith(_NOT_NEEDED):
            return
        if entry.isdir():
            self.directory(name, entry.mode)
        elif entry.issym():
            self.link(name, entry.linkname)
        elif entry.islnk():
            self._put(name, tarfile.LNKTYPE, entry.mode, target=_merged(entry.linkname))
        elif entry.isreg():
            source = tar.extractfile(entry)
            assert source is not None
            self.file(name, source.read(), entry.mode)

    def copy(self, name: str, source: str) -> None:
        """A file that the layer already has, under another name."""
        entry, content = self._entries[source]
        self.file(name, content, entry.mode)

    def join(self, name: str, below: str, ending: str) -> None:
        """One file of all those below a directory that end so."""
        parts = [
            content
            for path, (_, content) in sorted(self._entries.items())
            if path.startswith(below) and path.endswith(ending)
        ]
        self.file(name, b"".join(parts))

    def tree(self, directory: Path, at: str, keep: Callable[[str], bool] = bool) -> None:
        """All files below a directory."""
        for top, directories, files in os.walk(directory):
            directories.sort()
            inside = os.path.relpath(top, directory)
            for name in sorted(files):
                path = Path(top, name)
                final = os.path.normpath(os.path.join(at, inside, name))
                if not keep(final):
                    continue
                if path.is_symlink():
                    self.link(final, os.readlink(path))
                else:
                    self.file(final, path.read_bytes(), path.stat().st_mode & 0o777)

    def write(self, path: Path) -> "Written":
        with open(path, "wb") as raw, tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as tar:
            # Parents before children, links after what they point at.
            for _, (entry, content) in sorted(self._entries.items(), key=lambda item: (item[1][0].islnk(), item[0])):
                tar.addfile(entry, io.BytesIO(content))
        return written(path)


def _merged(name: str) -> str:
    name = name.removeprefix("./").rstrip("/")
    top, _, rest = name.partition("/")
    return f"usr/{name}" if top in _MERGED and rest else name


@dataclass(frozen=True)
class Written:
    """A layer on disk."""

    path: Path
    digest: str


def written(path: Path) -> Written:
    with open(path, "rb") as file:
        return Written(path, hashlib.file_digest(file, "sha256").hexdigest())


@dataclass(frozen=True)
class Image:
    """What an image runs, over which layers."""

    reference: str
    layers: tuple[Written, ...]
    command: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    user: str = ""

    def write(self, path: Path) -> None:
        """As one archive."""
        environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **self.environment}
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {
                "Env": [f"{name}={value}" for name, value in environment.items()],
                "Cmd": list(self.command),
                "Entrypoint": list(self.entrypoint),
                "User": self.user,
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer in self.layers]},
            "history": [{"created_by": "longboat tests/cluster"} for _ in self.layers],
        }
        text = json.dumps(config).encode()
        config_name = f"{hashlib.sha256(text).hexdigest()}.json"
        names = [f"{layer.digest}/layer.tar" for layer in self.layers]
        manifest = [{"Config": config_name, "RepoTags": [self.reference], "Layers": names}]
        with tarfile.open(path, "w") as tar:
            _add(tar, config_name, text)
            for name, layer in zip(names, self.layers, strict=True):
                tar.add(layer.path, arcname=name)
            _add(tar, "manifest.json", json.dumps(manifest).encode())


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))
