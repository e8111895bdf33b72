"""Wheels unpacked into a directory, with the environment's uv or, where there is none, pip."""

import importlib.util
import os
import sys
from pathlib import Path

from tests.cluster import children
from tests.cluster.errors import ClusterError


def unpack(wheels: tuple[str, ...], target: Path, python: str) -> None:
    """Exactly these wheels, as made for that version of Python; what they depend on is named too or not wanted."""
    if importlib.util.find_spec("uv"):
        command = [sys.executable, "-m", "uv", "pip", "install"]
    else:
        command = [sys.executable, "-m", "pip", "install", "--no-compile"]
    command += ["--quiet", "--no-deps", "--only-binary", ":all:", "--python-version", python, "--target", str(target)]
    environment = os.environ | {"UV_LINK_MODE": "copy"}  # the layer is made of what is ours alone
    done = children.run(*command, *wheels, check=False, env=environment)
    if done.returncode:
        raise ClusterError(f"{command[2]} could not get {' '.join(wheels)}: {done.stderr.strip()}")
