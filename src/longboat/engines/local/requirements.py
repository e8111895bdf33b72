"""The `requirements:` of a job, installed beside its code: a directory of its own on PYTHONPATH.

One directory per interpreter and list of requirements, made once and shared by all runs. The
environment that Longboat or the stage's `python:` lives in is never changed. A requirement that
the interpreter satisfies already is not installed again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256

from longboat.runtime.errors import LongboatError
from longboat.runtime.plan import Plan
from longboat.runtime.pod.pip_requirements import has


def directory(plan: Plan, python: str, home: str, say: Callable[[str], None] | None = None) -> str:
    """Where the packages are for the interpreter in `python` (a bin directory); empty: nothing to add. Paths in
    requirements are relative to the code tree."""
    from longboat.images import python_packages

    program = os.path.join(python, "python")
    if not os.path.exists(program):
        program = sys.executable
    identity = subprocess.run([program, "-VV"], capture_output=True, text=True, check=False).stdout
    listed = python_packages.lines(plan.requirements, plan.code)
    parts = [program, identity, *listed, *python_packages.stamps(listed)]
    key = sha256("\0".join(parts).encode()).hexdigest()[:16]
    place = os.path.join(home, "packages", key)
    if os.path.isdir(place):
        return place
    if has(plan.requirements, os.environ, program):
        return ""
    if say is not None:
        say(f"installing {' '.join(plan.requirements)} for {program}; that is done once")
    return _install(listed, program, place)


def _install(requirements: list[str], program: str, place: str) -> str:
    unfinished = f"{place}.{os.getpid()}"
    os.makedirs(os.path.dirname(place), exist_ok=True)
    shutil.rmtree(unfinished, ignore_errors=True)  # of one that was killed and had this number
    try:
        _install_into(unfinished, requirements, program, f"{place}.txt")
        os.rename(unfinished, place)
    except OSError:
        if not os.path.isdir(place):  # else somebody else was faster
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return place


def _install_into(directory: str, requirements: list[str], program: str, listed: str) -> None:
    with open(listed, "w", encoding="utf-8") as file:  # kept, so that the command can be tried by hand
        file.write("".join(f"{line}\n" for line in requirements))
    command = [*_installer(program), "--target", directory, "-r", listed]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = next((x for x in reversed((done.stderr or done.stdout).splitlines()) if x.strip()), "no message")
        raise LongboatError(
            f"requirements: {' '.join(requirements)} could not be installed: {last.strip()}",
            f"try it by hand: {' '.join(command)}",
        )


def _installer(program: str) -> list[str]:
    has_pip = subprocess.run([program, "-c", "import pip"], capture_output=True, check=False).returncode == 0
    if has_pip:
        return [program, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    beside = os.path.join(os.path.dirname(sys.executable), "uv")
    uv = beside if os.access(beside, os.X_OK) else shutil.which("uv")
    if uv is None:
        raise LongboatError(
            f"requirements: {program} has no pip, and there is no uv", f"{program} -m ensurepip, or install uv"
        )
    return [uv, "pip", "install", "--quiet", "--python", program]
