"""Small images, wheels and code trees, written to the disk as a user would have them."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

from tests.cluster.layers import Image, Layer


def base(path: Path, python: str = "usr/bin/python3.11", variables: dict[str, str] | None = None) -> Path:
    """An image as `docker save` writes it, with no more in it than the name of a Python."""
    layer = Layer()
    layer.file(python, b"#!/bin/sh\n", 0o755)
    Image("base:1", (layer.write(path.parent / "layer.tar"),), environment=variables or {}).write(path)
    return path


def tree(directory: Path) -> Path:
    (directory / "sub").mkdir(parents=True)
    (directory / "train.py").write_text("print('training')\n")
    (directory / "start.sh").write_text("#!/bin/sh\n")
    (directory / "start.sh").chmod(0o755)
    (directory / "sub/data.txt").write_text("ü\n")
    return directory


def wheel(directory: Path, tag: str = "py3-none-any") -> Path:
    """A package `tool` 1.0 with a module and a program."""
    directory.mkdir(parents=True, exist_ok=True)
    info = "tool-1.0.dist-info"
    files = {
        "tool.py": "def main() -> None:\n    print('tool')\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tool\nVersion: 1.0\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: {tag}\n",
        f"{info}/entry_points.txt": "[console_scripts]\ntool = tool:main\n",
    }
    rows = [f"{name},sha256={_sum(text)},{len(text.encode())}" for name, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""])
    path = directory / f"tool-1.0-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return path


def _sum(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
