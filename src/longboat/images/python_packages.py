"""Installs a job's `requirements:` for the image's Python, as files for a layer.

pip or uv downloads and unpacks the wheels. Their traces of the installer and of this machine are removed, so that the
layer depends only on the packages. Nothing is compiled here: a package without a wheel is an error, and docker, podman
or buildah can build it.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence

from longboat.runtime.errors import FAILED, LongboatError
from longboat.runtime.light_dataclasses import dataclass

_GLIBC = 28
"""Minimum glibc of the wheels, 2.28: images in use have it (Debian 10, Ubuntu 18.10, RHEL 8)."""
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64", "ppc64le": "ppc64le", "s390x": "s390x", "386": "i686"}
_OURS = ("INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")


@dataclass(frozen=True)
class WheelTarget:
    """Platform that packages are installed for."""

    python: str
    """`3.12`."""
    architecture: str = "amd64"
    libc: str = "glibc"


class NoWheel(LongboatError):
    """A package has no wheel and must be compiled inside the image."""


def install(requirements: Sequence[str], target: WheelTarget, directory: str, code: str) -> None:
    """Install into a new directory. Paths in requirements are relative to the code directory."""
    listed = f"{directory}.txt"
    with open(listed, "w", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines(requirements, code)))
    command = [*_installer(target), "--target", directory, "-r", listed]
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "UV_LINK_MODE": "copy"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=code, env=environment)
    if done.returncode:
        shutil.rmtree(directory, ignore_errors=True)
        raise _failure(requirements, target, done.stderr or done.stdout)
    os.makedirs(directory, exist_ok=True)  # markers may exclude all of them
    _normalise(directory)


def lines(requirements: Sequence[str], code: str) -> list[str]:
    """Lines of a requirements file; paths relative to the code directory become absolute."""
    absolute = []
    for line in requirements:
        option = re.fullmatch(r"(-f|--find-links|-c|--constraint)(?:\s+|=)(.+)", line)
        if option and "://" not in option[2]:
            line = f"{option[1]} {os.path.join(code, os.path.expanduser(option[2].strip()))}"
        elif line.startswith(("./", "../")):
            line = os.path.normpath(os.path.join(code, line))
        absolute.append(line)
    return absolute


def stamps(listed: Sequence[str]) -> list[str]:
    """Size and time of the files that the lines name, to detect changes."""
    states = []
    for line in listed:
        path = line.partition(" ")[2] if line.startswith("-") else line
        if os.path.isabs(path) and os.path.exists(path):
            paths = [os.path.join(path, name) for name in sorted(os.listdir(path))] if os.path.isdir(path) else [path]
            states += [f"{each} {os.stat(each).st_size} {os.stat(each).st_mtime_ns}" for each in paths]
    return states


def uses_tree(requirements: Sequence[str]) -> bool:
    """Whether the packages may depend on files of the code directory."""
    return any(line.startswith(("-", ".", "/", "file:")) or ".whl" in line for line in requirements)


def files(directory: str) -> list[str]:
    """Relative paths of the installed files, sorted."""
    paths = []
    for folder, folders, names in os.walk(directory):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        inside = os.path.relpath(folder, directory)
        paths += [os.path.normpath(os.path.join(inside, name)) for name in names if not name.endswith(".pyc")]
    return sorted(name for name in paths if name != ".lock")


def _installer(target: WheelTarget) -> list[str]:
    machine = _MACHINES.get(target.architecture)
    if machine is None:
        raise LongboatError(f"unknown architecture {target.architecture}", f"known: {', '.join(_MACHINES)}")
    common = ["--quiet", "--only-binary", ":all:", "--python-version", target.python]
    uv = shutil.which("uv", path=os.path.dirname(sys.executable)) or shutil.which("uv")
    if uv is not None:
        libc = "musllinux_1_2" if target.libc == "musl" else f"manylinux_2_{_GLIBC}"
        platform = ["--python", sys.executable, "--python-platform", f"{machine}-{libc}"]
        return [uv, "pip", "install", *common, *platform]
    if importlib.util.find_spec("pip") is None:
        raise LongboatError(
            "cannot install requirements: neither pip nor uv is installed",
            f"{sys.executable} -m ensurepip, or install uv",
        )
    if target.libc == "musl":
        tags = [f"musllinux_1_{number}_{machine}" for number in (2, 1)]
    else:
        tags = [f"manylinux_2_{number}_{machine}" for number in range(_GLIBC, 4, -1)]
        tags += [f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}"]
    platforms = [word for tag in [*tags, f"linux_{machine}"] for word in ("--platform", tag)]
    return [sys.executable, "-m", "pip", "install", *common, "--no-compile", "--implementation", "cp", *platforms]


def _failure(requirements: Sequence[str], target: WheelTarget, output: str) -> LongboatError:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    message = next((line for line in reversed(lines) if "error" in line.lower()), lines[-1] if lines else "no message")
    platform = f"Python {target.python}, {target.architecture}, {target.libc}"
    needs_wheel = re.search(
        r"no matching distribution|no usable wheels|no wheels? with a matching|building source distributions"
        r"|source distribution|no binary|could not find a version",
        output,
        re.I,
    )
    if needs_wheel:
        return NoWheel(
            f"requirements: {' '.join(requirements)}: no wheel for {platform}: {_tidy(lines) or message}",
            "use a version that has one, add a wheel to the code directory, or compile it in the image: --with docker",
            FAILED,
        )
    return LongboatError(
        f"requirements: cannot install {' '.join(requirements)} for {platform}: {message}",
        "try to install them by hand in a new virtual environment",
        FAILED,
    )


def _tidy(lines: list[str]) -> str:
    """The message on one line: uv prints it as a tree over several lines."""
    return " ".join(line.lstrip("×╰─▶│ ").removeprefix("ERROR: ") for line in lines)[:400]


def _normalise(directory: str) -> None:
    """Make scripts use the image's Python, and remove traces of the installer."""
    scripts = os.path.join(directory, "bin")
    changed: dict[str, str] = {}
    for name in sorted(os.listdir(scripts)) if os.path.isdir(scripts) else ():
        path = os.path.join(scripts, name)
        if _ours_no_more(path):
            changed[f"bin/{name}"] = path
    for name in os.listdir(directory):
        if name.endswith(".dist-info"):
            _forget(os.path.join(directory, name), changed)


def _ours_no_more(path: str) -> bool:
    with open(path, "rb") as file:
        content = file.read()
    first, _, rest = content.partition(b"\n")
    if first.startswith(b"#!/bin/sh") and rest.startswith(b"'''exec'"):  # the path was too long for a #! line
        rest = rest.split(b"\n", 2)[-1]
    elif not first.startswith(b"#!") or b"python" not in first:
        return False
    with open(path, "wb") as file:
        file.write(b"#!/usr/bin/env python3\n" + rest)
    return True


def _forget(info: str, changed: dict[str, str]) -> None:
    for name in _OURS:
        path = os.path.join(info, name)
        if os.path.exists(path):
            os.unlink(path)
    record = os.path.join(info, "RECORD")
    if not os.path.exists(record):
        return
    with open(record, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.reader(file) if row]
    gone = {f"{os.path.basename(info)}/{name}" for name in _OURS}
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    for row in sorted(rows):
        inside = re.sub(r"^(\.\./)+bin/", "bin/", row[0])
        if row[0] in gone or row[0].endswith(".pyc"):
            continue
        writer.writerow(_row(inside, changed[inside]) if inside in changed else [inside, *row[1:]])
    with open(record, "w", encoding="utf-8", newline="") as file:
        file.write(target.getvalue())


def _row(name: str, path: str) -> list[str]:
    with open(path, "rb") as file:
        content = file.read()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return [name, f"sha256={digest}", str(len(content))]
