"""The first thing a rank's pod does: a home, the code tree, the plan where the agent looks for it.

What it needs of the library it imports where it is used: the driver's pod asks for little of this,
and an image may have to compile all that it imports.
"""

from __future__ import annotations

import os
import sys
from typing import Dict, Mapping

from longboat.runtime import plan as plans
from longboat.runtime import run_layout
from longboat.runtime.kube_client import names

PROGRAMS = f"{names.HOME}/bin"
PACKAGES = f"{names.HOME}/packages"


def prepare(environ: Mapping[str, str]) -> Dict[str, str]:
    """The environment that the agent goes on with."""
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
    """The job's `requirements:` beside its code, where the image does not have them: a directory on PYTHONPATH."""
    with open(os.path.join(names.SHIP, run_layout.PLAN), encoding="utf-8") as file:
        requirements = plans.from_json(file.read()).requirements
    if not requirements:
        return environ
    from longboat.runtime.pod import pip_requirements

    if pip_requirements.has(requirements, environ):
        return environ
    pip_requirements.install(requirements, PACKAGES, names.CODE, environ)
    rest, path = environ.get("PYTHONPATH"), environ.get("PATH") or os.defpath
    found = {"PYTHONPATH": f"{PACKAGES}:{rest}" if rest else PACKAGES, "PATH": f"{path}:{PACKAGES}/bin"}
    return {**environ, **found}


def unpack(ship: str, target: str) -> None:
    """The code tree out of its parts, or out of the image that holds it; a tree that is not whole is no tree."""
    wanted = _read(os.path.join(ship, "code.sha256")).decode().strip()
    if not wanted:
        if not os.path.isdir(names.BUILT):
            sys.stderr.write(f"error: the image has no code tree in {names.BUILT}: it is not one of `longboat build`\n")
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
        sys.stderr.write(f"error: the code tree that came with the run is damaged: {len(parts)} parts\n")
        sys.exit(1)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(target, filter="data")
        else:
            archive.extractall(target)


def place_plan(run_dir: str) -> None:
    """Each pod may be the first: written aside and renamed."""
    path = os.path.join(run_dir, run_layout.PLAN)
    if not os.path.exists(path):
        aside = f"{path}.{os.uname().nodename}"
        with open(aside, "wb") as file:
            file.write(_read(os.path.join(names.SHIP, run_layout.PLAN)))
        os.replace(aside, path)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
