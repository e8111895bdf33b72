"""Provenance of a run: versions, git commit, hash of the code tree. Stored as provenance.json.

Collected while the ranks already run: asking git and reading the tree takes longer than starting a gang.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import platform
import subprocess
import sys
from hashlib import sha256

from longboat import __version__
from longboat.runtime import atomic_file, run_layout
from longboat.runtime.plan import Plan
from longboat.spec.code_tree import code_files

HASH_MOST = 64 * 1024 * 1024
"""A larger tree is not read for its hash: it holds data, not code."""


def write(plan: Plan, directory: str) -> None:
    path = os.path.join(directory, run_layout.PROVENANCE)
    if os.path.exists(path):
        return
    facts = {
        "longboat": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "host": platform.node(),
        "user": _user(),
        "git": _git(plan.code),
        "code": _code(plan.code),
    }
    with contextlib.suppress(OSError):
        atomic_file.write(path, json.dumps(facts, indent=2))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _git(directory: str) -> dict[str, object] | None:
    def git(*arguments: str) -> str:
        command = ["git", "-C", directory, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout

    try:
        commit = git("rev-parse", "HEAD").strip()
        return {"commit": commit, "dirty": bool(git("status", "--porcelain", "--", ".").strip())}
    except (OSError, subprocess.SubprocessError):
        return None


def _code(directory: str) -> dict[str, object] | None:
    """Hash over the names and contents of the `code:` tree, without what its ignore file excludes."""
    digest, files, size = sha256(), 0, 0
    try:
        for name in code_files(directory):
            path = os.path.join(directory, name)
            size += os.path.getsize(path)
            if size > HASH_MOST:
                return {"sha256": None, "why": f"the tree holds more than {HASH_MOST >> 20} MiB"}
            with open(path, "rb") as file:
                content = sha256(file.read()).hexdigest()
            digest.update(f"{name}\0{content}\n".encode())
            files += 1
    except OSError as error:
        return {"sha256": None, "why": str(error)}
    return {"sha256": digest.hexdigest(), "files": files, "bytes": size}
