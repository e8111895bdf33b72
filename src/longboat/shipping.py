"""The part of Longboat that ships into strangers' images, as one file.

`build` gives a zipapp of the shipped modules, the same bytes each time. `python longboat.pyz` is
the agent of one seat, and with a word one of the things that a pod can be (`kube.__main__`). It
unpacks itself first, because ranks need files: in a pod once for all that is started there. Where a run
serves a model, all of Longboat travels: the server's image has the libraries, not Longboat. That part
needs Python 3.11.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator

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
WHOLE = (".py", ".binpb", ".html", ".js", ".css")
"""Kinds of files that the whole of Longboat is made of."""
EPOCH = (1980, 1, 1, 0, 0, 0)
POD = "/longboat"
"""Where a pod has its writable volume (`kube.names.HOME`)."""
RANKS = ("agent", "server")
"""Words that start programs which import Longboat; the others import it from the archive, which is sooner done."""
MAIN = f"""import os
import sys

if sys.version_info < (3, 9):
    sys.exit("error: Longboat needs Python 3.9 or newer in the image, and this is %d.%d" % sys.version_info[:2])

# Ranks need files: a Python that a rank starts reads rank_path, and imports longboat from beside it. They are
# written by hand, because importing zipfile takes longer than that in an image whose library was never compiled.


def unpack(home):
    for name in NAMES:
        path = os.path.join(home, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(__loader__.get_data(os.path.join(__loader__.archive, name)))
    return home


def unpack_once(home):
    # The first process in a pod unpacks for all that come after it.
    if not os.path.isdir(home):
        aside = f"{{home}}.{{os.urandom(4).hex()}}"
        unpack(aside)
        try:
            os.rename(aside, home)
        except OSError:  # another was faster
            import shutil

            shutil.rmtree(aside)
    return home


class Late(type(sys)):
    # A module that is imported when something of it is first asked for.
    def __getattr__(self, name):
        if sys.modules[self.__name__] is self:
            del sys.modules[self.__name__]
        return getattr(__import__(self.__name__), name)


# dataclasses imports it to write docstrings, and ours have theirs: a fifth of a pod's start where nothing is compiled.
sys.modules["inspect"] = Late("inspect")

if sys.argv[1:]:
    sys.pycache_prefix = "{POD}/compiled"
    if sys.argv[1] in {RANKS}:
        sys.path[0] = unpack_once("{POD}/lib")
    home = sys.path[0]
    from longboat.kube.__main__ import main

    sys.exit(main(sys.argv[1:], os.environ, os.path.join(home, "longboat")))

import shutil
import tempfile

sys.path[0] = home = unpack(tempfile.mkdtemp(prefix="longboat-agent-"))
try:
    from longboat.agent.__main__ import main

    code = main(os.environ, os.path.join(home, "longboat"))
finally:
    shutil.rmtree(home, ignore_errors=True)
sys.exit(code)
"""


def files(whole: bool = False) -> list[tuple[str, bytes]]:
    """Name in the archive and content of every shipped file, sorted."""
    package = os.path.dirname(os.path.abspath(__file__))
    found = []
    for place in _whole(package) if whole else _shipped(package):
        with open(place, "rb") as file:
            found.append(("longboat/" + os.path.relpath(place, package).replace(os.sep, "/"), file.read()))
    names = sorted(name for name, _ in found)
    return sorted([*found, ("__main__.py", f"NAMES = {names}\n{MAIN}".encode())])


def _shipped(package: str) -> Iterator[str]:
    for name in SHIPPED:
        path = os.path.join(package, name)
        places = [path] if os.path.isfile(path) else [os.path.join(path, f) for f in sorted(os.listdir(path))]
        yield from (place for place in places if place.endswith(".py"))


def _whole(package: str) -> Iterator[str]:
    for folder, folders, names in os.walk(package):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield from (os.path.join(folder, name) for name in names if name.endswith(WHOLE))


def build(whole: bool = False) -> bytes:
    """The zipapp. whole: all of Longboat, for runs that serve or load-test: about half a megabyte."""
    target = io.BytesIO()
    target.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files(whole):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return target.getvalue()
