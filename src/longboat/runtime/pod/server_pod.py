"""Pods that are no ranks: what brings a server its model and TensorBoard its curves, and what becomes the server.

`fetch` waits for the driver for as long as it takes: a pod that is made while the driver is away starts when it
is back. What it brought stays for the life of the pod, so a server that crashes needs nobody.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import Dict, List, Mapping, Tuple

from longboat import runtime
from longboat.runtime import wire
from longboat.runtime.agent.file_transfer import FileClient
from longboat.runtime.kube_client import names
from longboat.runtime.pod import rank_pod

PAUSE = 1.0
LOOK = 3.0
"""Seconds between two looks for what TensorBoard is to show."""
NEWEST = (3, 11)
"""The Python that the server needs; what ships into all other pods is content with 3.9."""


def fetch(environ: Mapping[str, str]) -> int:
    """The model's files, into NAME/VERSION below the place for models."""
    source, target = environ["LONGBOAT_MODEL"], environ["LONGBOAT_TARGET"]
    if not environ.get("LONGBOAT_DEPOT"):
        shutil.copytree(os.path.join(names.RUN, source), target, dirs_exist_ok=True)
        return 0
    with open(os.path.join(names.TOKEN, "token"), "rb") as secret:
        token = secret.read().strip()
    said = ""
    while True:
        try:
            count = _fetched(environ["LONGBOAT_DEPOT"], token, os.uname().nodename, source, target)
            sys.stdout.write(f"fetched {count} files of {source}\n")
            return 0
        except (OSError, wire.WireError, ValueError) as error:
            if str(error) != said:
                said = str(error)
                sys.stderr.write(f"the driver cannot be reached for the model, trying again: {said}\n")
                sys.stderr.flush()
            time.sleep(PAUSE)


def _fetched(address: str, token: bytes, name: str, source: str, target: str) -> int:
    depot = FileClient(address, token, name)
    try:
        found = depot.list(source)
        if not found:
            raise ValueError(f"the driver has no {source}")
        for path, _, _ in found:
            depot.get(path, os.path.join(target, os.path.relpath(path, source)))
        return len(found)
    finally:
        depot.close()


def board(environ: Mapping[str, str]) -> int:
    """For ever: what ranks report and what stages write for TensorBoard, whenever it has grown."""
    with open(os.path.join(names.TOKEN, "token"), "rb") as secret:
        token = secret.read().strip()
    known: Dict[str, Tuple[int, int]] = {}
    while True:
        try:
            depot = FileClient(environ["LONGBOAT_DEPOT"], token, os.uname().nodename)
            try:
                _bring_events(depot, known)
            finally:
                depot.close()
        except (OSError, wire.WireError, ValueError):
            pass  # the driver may be away, or home
        time.sleep(LOOK)


def _bring_events(depot: FileClient, known: Dict[str, Tuple[int, int]]) -> None:
    for tree in ("board", "output"):
        for path, size, at in depot.list(tree):
            parts = path.split("/")
            if (".tfevents." in parts[-1] or "/plugins/profile/" in path) and known.get(path) != (size, at):
                inside = parts[1:] if tree == "board" else [parts[1], "output", *parts[2:]]
                depot.get(path, os.path.join(names.EVENTS, *inside))
                known[path] = (size, at)


def serve(words: List[str], environ: Mapping[str, str]) -> int:  # noqa: RET503 (it becomes another)
    """Becomes `longboat serve ...`, with all of Longboat from beside this file and the image's own libraries."""
    if sys.version_info < NEWEST:
        found = ".".join(map(str, sys.version_info[:2]))
        sys.stderr.write(f"error: the server needs Python {'.'.join(map(str, NEWEST))}, and this image has {found}\n")
        return 2
    env = rank_pod.prepare(environ)
    path = [runtime.IMPORT_PATH, *filter(None, [env.get("PYTHONPATH")])]
    env["PYTHONPATH"] = os.pathsep.join(path)
    env["PYTHONUNBUFFERED"] = "1"
    os.execve(sys.executable, [sys.executable, "-m", *words], env)
