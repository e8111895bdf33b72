"""Cores, memory, GPUs and Python packages of this machine.

It only reads: kernel files, metadata of installed packages, and the output of `nvidia-smi`. No package is imported to
find out whether it is installed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator

from longboat.runtime.light_dataclasses import dataclass


@dataclass(frozen=True)
class CoreCount:
    allowed: int
    """Cores that this process may run on."""
    quota: float | None = None
    """CPU quota of its cgroup, in cores; None: no limit."""

    @property
    def usable(self) -> float:
        return self.allowed if self.quota is None else min(float(self.allowed), self.quota)


@dataclass(frozen=True)
class MemorySize:
    total: int
    limit: int | None = None
    """Memory limit of its cgroup; None: no limit."""

    @property
    def usable(self) -> int:
        return self.total if self.limit is None else min(self.total, self.limit)


@dataclass(frozen=True)
class Gpu:
    name: str
    memory: str


def cores(root: str = "/") -> CoreCount:
    """Cores available to this process. root: the directory with /proc and /sys; tests pass another one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = []
    for directory in _cgroups(root, ""):
        fields = _read(os.path.join(directory, "cpu.max")).split()
        if len(fields) == 2 and fields[0].isdigit():
            quotas.append(int(fields[0]) / int(fields[1]))
    for directory in _cgroups(root, "cpu"):
        quota = _number(_read(os.path.join(directory, "cpu.cfs_quota_us")))
        period = _number(_read(os.path.join(directory, "cpu.cfs_period_us")))
        if quota > 0 and period > 0:
            quotas.append(quota / period)
    return CoreCount(allowed, min(quotas, default=None))


def memory(root: str = "/") -> MemorySize:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [_number(_read(os.path.join(directory, "memory.max"))) for directory in _cgroups(root, "")]
    limits += [_number(_read(os.path.join(d, "memory.limit_in_bytes"))) for d in _cgroups(root, "memory")]
    # cgroup v1 writes a huge number for "no limit".
    return MemorySize(total, min((limit for limit in limits if 0 < limit < total), default=None))


def gpus(path: str | None = None) -> list[Gpu]:
    """GPUs listed by nvidia-smi; none if it is missing or fails."""
    import shutil
    import subprocess

    program = shutil.which("nvidia-smi", path=path)
    if program is None:
        return []
    command = [program, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = (line.partition(",") for line in done.stdout.splitlines() if line.strip())
    return [Gpu(name.strip(), size.strip()) for name, _, size in rows]


def visible_gpus(visible: str | None) -> tuple[str, ...]:
    """GPUs that ranks may use, by CUDA name: those in CUDA_VISIBLE_DEVICES, or else all."""
    if visible is not None:
        return tuple(name for name in visible.split(",") if name.strip())
    try:
        names = os.listdir("/dev")
    except OSError:
        return ()
    numbers = sorted(int(name[6:]) for name in names if name.startswith("nvidia") and name[6:].isdigit())
    return tuple(str(number) for number in numbers)


def version(*names: str) -> str | None:
    """Version of the first installed one of these distributions."""
    from importlib import metadata

    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def programs() -> str:
    """Directory with the programs of the Python environment that runs Longboat."""
    return os.path.dirname(sys.executable)


SERVING = ("httptools", "numpy", "onnxruntime", "orjson", "uvloop")
SERVING_GRPC = ("google.protobuf", "grpc")
"""Modules that a model server imports, and those that it imports for gRPC."""


def lacking(modules: Iterable[str]) -> list[str]:
    """The modules that are not installed."""
    from importlib.util import find_spec

    def there(name: str) -> bool:
        try:
            return find_spec(name) is not None
        except ModuleNotFoundError:  # its parent package
            return False

    return [name for name in modules if not there(name)]


def _cgroups(root: str, controller: str) -> Iterator[str]:
    """cgroup directories that apply to this process, innermost first. No controller: cgroup v2.

    In a container the path in /proc may not exist below /sys, so the top directory is always included.
    """
    base = os.path.join(root, "sys/fs/cgroup", controller)
    if not controller and os.path.isdir(os.path.join(base, "unified")):
        base = os.path.join(base, "unified")
    for line in _read(os.path.join(root, "proc/self/cgroup")).splitlines():
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if controller in names.split(","):
            parts = [part for part in path.split("/") if part]
            for length in range(len(parts), 0, -1):
                yield os.path.join(base, *parts[:length])
    yield base


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError):
        return ""


def _number(text: str) -> int:
    """The number in the text; -1 if it is not one, such as `max`."""
    text = text.strip()
    return int(text) if text.isdigit() else -1
