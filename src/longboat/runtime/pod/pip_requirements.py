"""The job's `requirements:` in a pod: which are installed, and installing the rest with pip."""

from __future__ import annotations

import subprocess
import sys
from typing import Mapping, Sequence

from longboat.runtime.errors import PACKAGES_MISSING

# Without pip, the common forms are parsed here.
_HAS = r"""
import operator, re, sys
from importlib.metadata import PackageNotFoundError, version
try:
    from packaging.requirements import Requirement
except ImportError:
    try:
        from pip._vendor.packaging.requirements import Requirement
    except ImportError:
        Requirement = None
SIGNS = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}

def release(text):
    numbers = [int(part) for part in re.match(r"[\d.]*", text)[0].split(".") if part]
    while numbers and not numbers[-1]:
        numbers.pop()
    return numbers

def meets(text):
    match = re.fullmatch(r"([\w.-]+?)\s*((?:[=!<>]=?\s*[\d.]+\s*,?\s*)*)", text)
    if match is None:
        return False
    have = release(version(match[1]))
    wishes = re.findall(r"([=!<>]=|[<>])\s*([\d.]+)", match[2])
    return all(SIGNS[sign](have, release(wanted)) for sign, wanted in wishes)

for text in sys.argv[1:]:
    text = text.partition(" --hash")[0].strip()
    try:
        if Requirement is None:
            if not meets(text):
                sys.exit(1)
        else:
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate():
                if need.extras or need.url or not need.specifier.contains(version(need.name), prereleases=True):
                    sys.exit(1)
    except (PackageNotFoundError, ValueError):
        sys.exit(1)
"""


def has(requirements: Sequence[str], environ: Mapping[str, str], python: str = sys.executable) -> bool:
    """Whether this Python has all requirements; options of pip are ignored."""
    named = [line for line in requirements if not line.startswith("-")]
    command = [python, "-c", _HAS, *named]
    done = subprocess.run(command, env=dict(environ), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return done.returncode == 0


def install(requirements: Sequence[str], target: str, code: str, environ: Mapping[str, str]) -> None:
    """Install with the image's pip; exits with a message if that fails."""
    listed = f"{target}.txt"
    with open(listed, "w", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in requirements))
    pip = [sys.executable, "-m", "pip"]
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "cwd": code, "env": dict(environ)}
    if subprocess.run([*pip, "--version"], check=False, **how).returncode:  # type: ignore[call-overload]
        _fail(requirements, "the image has no pip; use an image with pip, or build one: longboat run --build")
    options = ["--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-input", "--target", target]
    done = subprocess.run([*pip, "install", *options, "-r", listed], check=False, **how)  # type: ignore[call-overload]
    if done.returncode:
        lines = [line.strip() for line in done.stdout.decode("utf-8", "replace").splitlines() if line.strip()]
        errors = [line[7:] for line in lines if line.startswith("ERROR: ")]
        _fail(requirements, (errors or lines or ["no message"])[-1])


def _fail(requirements: Sequence[str], why: str) -> None:
    sys.stderr.write(f"error: cannot install {' '.join(requirements)} in the pod: {why}\n")
    sys.exit(PACKAGES_MISSING)
