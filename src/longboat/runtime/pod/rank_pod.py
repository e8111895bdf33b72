"""Prepares a rank's pod: home directory, code tree, packages, and the plan for the agent.

Modules are imported where they are used: the driver's pod needs few of them, and an image may have to compile
everything it imports.
"""

from __future__ import annotations

import os
import sys
from typing import Dict, Mapping

from longboat.runtime import atomic_file, run_layout
from longboat.runtime import plan as plans
from longboat.runtime.kube_client import names

PROGRAMS = f"{names.HOME}/bin"
PACKAGES = f"{names.HOME}/packages"


def prepare(environ: Mapping[str, str]) -> Dict[str, str]:
    """Prepare the pod; returns the agent's environment."""
    for directory in (environ.get("HOME", ""), names.CODE, names.RUN):
        if directory:
            os.makedirs(directory, exist_ok=True)
    unpack(names.SHIP, names.CODE)
    place_plan(names.RUN)
    environ = _with_packages(environ)
    import shutil

    path = environ.get("PATH") or os.defpath
    if shutil.which("python", path=path) is None:  # Debian's own image has python3 alone
        os.makedirs(PROGRAMS, exist_ok=True)
        if not os.path.lexists(f"{PROGRAMS}/python"):
            os.symlink(sys.executable, f"{PROGRAMS}/python")
        path = f"{path}:{PROGRAMS}"
    return {**environ, "PATH": path}


def _with_packages(environ: Mapping[str, str]) -> Mapping[str, str]:
    """Install the job's `requirements:` next to its code if the image lacks them: a directory on PYTHONPATH."""
    with open(os.path.join(names.SHIP, run_layout.PLAN), encoding="utf-8") as file:
        requirements = plans.from_json(file.read()).requirements
    if not requirements:
        return environ
    from longboat.runtime.pod import pip_requirements

    if pip_requirements.has(requirements, environ):
        return environ
    pip_requirements.install(requirements, PACKAGES, names.CODE, environ)
    rest, path = environ.get("PYTHONPATH"), environ.get("PATH") or os.defpath
    added = {"PYTHONPATH": f"{PACKAGES}:{rest}" if rest else PACKAGES, "PATH": f"{path}:{PACKAGES}/bin"}
    return {**environ, **added}


def unpack(ship: str, target: str) -> None:
    """Unpack the code tree from its parts, or copy it from an image that contains it; checks that it is complete."""
    wanted = _read(os.path.join(ship, "code.sha256")).decode().strip()
    if not wanted:
        if not os.path.isdir(names.BUILT):
            sys.stderr.write(f"error: the image has no code tree in {names.BUILT}; build it with `longboat build`\n")
            sys.exit(1)
        import shutil

        shutil.copytree(names.BUILT, target, dirs_exist_ok=True)
        return
    import hashlib
    import io
    import tarfile

    parts = sorted(name for name in os.listdir(ship) if name.startswith("code.") and name[5:].isdigit())
    data = b"".join(_read(os.path.join(ship, name)) for name in parts)
    if hashlib.sha256(data).hexdigest() != wanted:
        sys.stderr.write(f"error: the run's code tree is damaged (wrong checksum of {len(parts)} parts)\n")
        sys.exit(1)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(target, filter="data")
        else:
            archive.extractall(target)


def place_plan(run_dir: str) -> None:
    """Write the plan unless it exists; atomically, because several pods may do it."""
    path = os.path.join(run_dir, run_layout.PLAN)
    if not os.path.exists(path):
        atomic_file.write(path, _read(os.path.join(names.SHIP, run_layout.PLAN)))


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
