"""Pods that are not ranks: fetch the model for a server and event files for TensorBoard, and start the server.

`fetch` waits for the driver as long as necessary: a pod created while the driver is away starts when it is back. The
files stay for the lifetime of the pod, so a server that crashes does not need the driver.
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
from longboat.runtime.errors import PYTHON_TOO_OLD
from longboat.runtime.kube_client import names
from longboat.runtime.pod import rank_pod

PAUSE = 1.0
LOOK = 3.0
"""Seconds between two looks for new event files."""
NEWEST = (3, 11)
"""The server's Python version; everything else in pods runs on 3.9."""


def fetch(environ: Mapping[str, str]) -> int:
    """Fetch the model's files to NAME/VERSION in the models directory."""
    source, target = environ["LONGBOAT_MODEL"], environ["LONGBOAT_TARGET"]
    if not environ.get("LONGBOAT_DEPOT"):
        shutil.copytree(os.path.join(names.RUN, source), target, dirs_exist_ok=True)
        return 0
    with open(os.path.join(names.TOKEN, "token"), "rb") as secret:
        token = secret.read().strip()
    last_error = ""
    while True:
        try:
            count = _fetch_files(environ["LONGBOAT_DEPOT"], token, os.uname().nodename, source, target)
            sys.stdout.write(f"fetched {count} files of {source}\n")
            return 0
        except (OSError, wire.WireError, ValueError) as error:
            if str(error) != last_error:
                last_error = str(error)
                sys.stderr.write(f"cannot fetch the model from {environ['LONGBOAT_DEPOT']}, retrying: {last_error}\n")
                sys.stderr.flush()
            time.sleep(PAUSE)


def _fetch_files(address: str, token: bytes, name: str, source: str, target: str) -> int:
    client = FileClient(address, token, name)
    try:
        files = client.list(source)
        if not files:
            raise ValueError(f"the driver has no files in {source}")
        for path, _, _ in files:
            client.get(path, os.path.join(target, os.path.relpath(path, source)))
        return len(files)
    finally:
        client.close()


def board(environ: Mapping[str, str]) -> int:
    """Fetch TensorBoard files of ranks and stages as they grow, for ever."""
    with open(os.path.join(names.TOKEN, "token"), "rb") as secret:
        token = secret.read().strip()
    known: Dict[str, Tuple[int, int]] = {}
    while True:
        try:
            client = FileClient(environ["LONGBOAT_DEPOT"], token, os.uname().nodename)
            try:
                _fetch_events(client, known)
            finally:
                client.close()
        except (OSError, wire.WireError, ValueError):
            pass  # the driver may be away, or scaled to zero
        time.sleep(LOOK)


def _fetch_events(client: FileClient, known: Dict[str, Tuple[int, int]]) -> None:
    for tree in ("board", "output"):
        for path, size, at in client.list(tree):
            parts = path.split("/")
            if (".tfevents." in parts[-1] or "/plugins/profile/" in path) and known.get(path) != (size, at):
                inside = parts[1:] if tree == "board" else [parts[1], "output", *parts[2:]]
                client.get(path, os.path.join(names.EVENTS, *inside))
                known[path] = (size, at)


def serve(arguments: List[str], environ: Mapping[str, str]) -> int:  # noqa: RET503 (it becomes another)
    """Become `longboat serve ...`, with Longboat from next to this file and the image's libraries."""
    if sys.version_info < NEWEST:
        here = ".".join(map(str, sys.version_info[:2]))
        sys.stderr.write(f"error: the server needs Python {'.'.join(map(str, NEWEST))}, but this image has {here}\n")
        return PYTHON_TOO_OLD
    env = rank_pod.prepare(environ)
    path = [runtime.IMPORT_PATH, *filter(None, [env.get("PYTHONPATH")])]
    env["PYTHONPATH"] = os.pathsep.join(path)
    env["PYTHONUNBUFFERED"] = "1"
    os.execve(sys.executable, [sys.executable, "-m", *arguments], env)
