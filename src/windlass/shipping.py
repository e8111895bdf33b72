"""The part of Windlass that ships into strangers' images, as one file.

`build` gives a zipapp of the shipped modules, the same bytes each time. `python windlass.pyz` is
the agent of one seat, and with a word one of the other things a pod can be (`kube.__main__`); it
unpacks itself first, because ranks need files.
"""

from __future__ import annotations

import io
import os
import zipfile

SHIPPED = (
    "__init__.py",
    "_rank.py",
    "agent",
    "buckets",
    "bundle",
    "causes.py",
    "checkpoint.py",
    "driver",
    "errors.py",
    "gang",
    "journal.py",
    "kube",
    "layout.py",
    "lock.py",
    "parcel.py",
    "pipeline.py",
    "plan.py",
    "rank_path",
    "rankenv.py",
    "shapes.py",
    "tensorboard.py",
    "tensors.py",
    "wire.py",
)
EPOCH = (1980, 1, 1, 0, 0, 0)
MAIN = """import os
import shutil
import sys
import tempfile
import zipfile

# Ranks need files: a Python that a rank starts reads rank_path, and imports windlass from beside it.
home = tempfile.mkdtemp(prefix="windlass-agent-")
with zipfile.ZipFile(os.path.dirname(os.path.abspath(__file__))) as archive:
    archive.extractall(home)
sys.path[0] = home
try:
    package = os.path.join(home, "windlass")
    if sys.argv[1:]:
        from windlass.kube.__main__ import main as answer

        code = answer(sys.argv[1:], os.environ, package)
    else:
        from windlass.agent.__main__ import main

        code = main(os.environ, package)
finally:
    shutil.rmtree(home, ignore_errors=True)
sys.exit(code)
"""


def files() -> list[tuple[str, bytes]]:
    """Name in the archive and content of every shipped file, sorted."""
    package = os.path.dirname(os.path.abspath(__file__))
    found = []
    for name in SHIPPED:
        path = os.path.join(package, name)
        places = [path] if os.path.isfile(path) else [os.path.join(path, f) for f in sorted(os.listdir(path))]
        for place in places:
            if place.endswith(".py"):
                with open(place, "rb") as file:
                    found.append(("windlass/" + os.path.relpath(place, package).replace(os.sep, "/"), file.read()))
    return sorted([*found, ("__main__.py", MAIN.encode())])


def build() -> bytes:
    """The zipapp."""
    target = io.BytesIO()
    target.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return target.getvalue()
