"""Installs the `requirements:` of a job into a separate directory on PYTHONPATH.

There is one directory per interpreter and list of requirements, created once and shared by all runs. The environment
of Longboat or of the stage's `python:` is never changed. Requirements that the interpreter already satisfies are not
installed again.
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


def directory(plan: Plan, python: str, home: str, say: Callable[[str], None]) -> str:
    """Directory of the packages for the interpreter in `python` (a bin directory); empty if none are needed. Paths in
    requirements are relative to the code tree."""
    from longboat.images import python_packages

    program = os.path.join(python, "python")
    if not os.path.exists(program):
        program = sys.executable
    identity = subprocess.run([program, "-VV"], capture_output=True, text=True, check=False).stdout
    listed = python_packages.lines(plan.requirements, plan.code)
    parts = [program, identity, *listed, *python_packages.stamps(listed)]
    key = sha256("\0".join(parts).encode()).hexdigest()[:16]
    target = os.path.join(home, "packages", key)
    if os.path.isdir(target):
        return target
    if has(plan.requirements, os.environ, program):
        return ""
    say(f"installing {' '.join(plan.requirements)} for {program} (once)")
    return _install(listed, program, target)


def _install(requirements: list[str], program: str, target: str) -> str:
    unfinished = f"{target}.{os.getpid()}"
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.rmtree(unfinished, ignore_errors=True)  # left by a killed process with the same PID
    try:
        _install_into(unfinished, requirements, program, f"{target}.txt")
        os.rename(unfinished, target)
    except OSError:
        if not os.path.isdir(target):  # else another process was faster
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return target


def _install_into(directory: str, requirements: list[str], program: str, listed: str) -> None:
    with open(listed, "w", encoding="utf-8") as file:  # kept, so that the command can be tried by hand
        file.write("".join(f"{line}\n" for line in requirements))
    command = [*_installer(program), "--target", directory, "-r", listed]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = next((x for x in reversed((done.stderr or done.stdout).splitlines()) if x.strip()), "no message")
        raise LongboatError(
            f"requirements: cannot install {' '.join(requirements)}: {last.strip()}",
            f"run it yourself: {' '.join(command)}",
        )


def _installer(program: str) -> list[str]:
    has_pip = subprocess.run([program, "-c", "import pip"], capture_output=True, check=False).returncode == 0
    if has_pip:
        return [program, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    beside = os.path.join(os.path.dirname(sys.executable), "uv")
    uv = beside if os.access(beside, os.X_OK) else shutil.which("uv")
    if uv is None:
        raise LongboatError(
            f"requirements: {program} has no pip, and uv is not installed", f"{program} -m ensurepip, or install uv"
        )
    return [uv, "pip", "install", "--quiet", "--python", program]
