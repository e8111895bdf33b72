"""Builds the zipapp that brings `longboat.runtime` into users' images as one file.

`build` is reproducible: it returns the same bytes each time. `python longboat.pyz` runs an agent; with an argument it
runs one of the programs of a pod (`runtime.pod.__main__`). It unpacks itself first, because ranks import Longboat from
files. For a run that serves a model the zipapp holds all of Longboat, because the server's image has the libraries but
not Longboat; that part needs Python 3.11.
"""

from __future__ import annotations

import io
import os
import zipfile

from longboat.runtime import errors

WHOLE = (".py", ".binpb", ".html", ".js", ".css")
"""Suffixes of the files to include."""
EPOCH = (1980, 1, 1, 0, 0, 0)
POD = "/longboat"
"""Path of a pod's writable volume (`kube_client.names.HOME`)."""
RANKS = ("agent", "server")
"""Programs that need Longboat as files; the others import it from the archive, which is faster."""
MAIN = f"""import os
import sys

if sys.version_info < (3, 9):
    sys.stderr.write("error: Longboat needs Python 3.9 or newer, and the image has %d.%d\\n" % sys.version_info[:2])
    sys.exit({errors.PYTHON_TOO_OLD})

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


if sys.argv[1:]:
    sys.pycache_prefix = "{POD}/compiled"
    if sys.argv[1] in {RANKS}:
        sys.path[0] = unpack_once("{POD}/lib")
    home = sys.path[0]
    from longboat.runtime.pod.__main__ import main

    sys.exit(main(sys.argv[1:], os.environ))

import shutil
import tempfile

sys.path[0] = home = unpack(tempfile.mkdtemp(prefix="longboat-agent-"))
try:
    from longboat.runtime.agent.__main__ import main

    code = main(os.environ)
finally:
    shutil.rmtree(home, ignore_errors=True)
sys.exit(code)
"""


def files(whole: bool = False) -> list[tuple[str, bytes]]:
    """Name in the archive and content of every file, sorted. whole: all of Longboat."""
    package = os.path.dirname(os.path.abspath(__file__))
    shipped = []
    for folder, folders, names in os.walk(package):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            relative = os.path.relpath(os.path.join(folder, name), package).replace(os.sep, "/")
            if name.endswith(WHOLE) and (whole or relative == "__init__.py" or relative.startswith("runtime/")):
                with open(os.path.join(folder, name), "rb") as file:
                    shipped.append((f"longboat/{relative}", file.read()))
    members = sorted(name for name, _ in shipped)
    return sorted([*shipped, ("__main__.py", f"NAMES = {members}\n{MAIN}".encode())])


def build(whole: bool = False) -> bytes:
    """The zipapp's bytes. whole: all of Longboat (about half a megabyte), for runs that serve or load-test."""
    target = io.BytesIO()
    target.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files(whole):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return target.getvalue()
