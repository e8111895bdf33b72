"""Install commands for hints: how to add an extra or a package to this copy of Longboat.

Every hint that says "install this" comes from here, because the right command depends on how this copy was installed:
pip and uv need the checkout or the wheel it came from, `uv tool` and pipx keep a record of their own that a plain
`pip install` would bypass, and an environment made by uv has no pip. Modules in `runtime` do not use it: they also run
in users' images, where Longboat is not installed at all.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import sys
from typing import TYPE_CHECKING, Any

from longboat.runtime.light_dataclasses import dataclass, replace

if TYPE_CHECKING:
    from importlib.metadata import Distribution

_NAME = "longboat"


@dataclass(frozen=True)
class InstalledCopy:
    """Where a copy of Longboat came from, and which tool manages its environment."""

    prefix: str
    """The root of the environment."""
    python: str
    path: str = ""
    """The checkout or wheel that it was installed from, if it still exists."""
    url: str = ""
    """The address that it was installed from, as pip writes it (`git+https://...`)."""
    editable: bool = False
    published: bool = False
    """Installed by name from a package index."""
    requirements: tuple[str, ...] = ()
    """What its extras need, as its metadata lists them."""

    def source(self, extras: tuple[str, ...]) -> str:
        """Longboat itself with these extras, as pip and uv accept it; empty if its origin no longer exists."""
        brackets = f"[{','.join(sorted(set(extras)))}]" if extras else ""
        if self.editable:
            return f"{self.path}{brackets}"
        if self.path:
            from pathlib import Path

            return f"{_NAME}{brackets} @ {Path(self.path).as_uri()}"
        if self.url:
            return f"{_NAME}{brackets} @ {self.url}"
        return f"{_NAME}{brackets}" if self.published else ""


def install_command(*extras: str, packages: tuple[str, ...] = ()) -> str:
    """The command that adds these extras of Longboat, and other packages, to the environment of this copy."""
    return command_for(this_copy(), extras, packages)


def command_for(copy: InstalledCopy, extras: tuple[str, ...], packages: tuple[str, ...] = ()) -> str:
    receipt = os.path.join(copy.prefix, "uv-receipt.toml")
    if os.path.isfile(receipt) and (command := _uv_tool(copy, receipt, extras, packages)):
        return command
    if os.path.isfile(os.path.join(copy.prefix, "pipx_metadata.json")):
        return shlex.join(["pipx", "inject", os.path.basename(copy.prefix), *_needed_by(copy, extras), *packages])
    source = copy.source(extras) if extras else ""
    if source:
        wanted = ["--editable", source] if copy.editable else [source]
    else:
        wanted = _needed_by(copy, extras)
    return f"{_installer(copy)} {shlex.join([*wanted, *packages])}"


@functools.cache
def this_copy() -> InstalledCopy:
    """How the Longboat that is running was installed."""
    copy = InstalledCopy(sys.prefix, sys.executable)
    checkout = _checkout()
    distribution = _distribution()
    if distribution is None:
        return replace(copy, path=checkout, editable=True) if checkout else replace(copy, published=True)
    copy = replace(copy, requirements=tuple(distribution.requires or ()))
    if checkout:
        return replace(copy, path=checkout, editable=True)
    origin = _origin(distribution)
    if origin is None:
        return replace(copy, published=True)
    url = str(origin.get("url", ""))
    if url.startswith("file:") and "vcs_info" not in origin:
        path = _path(url)
        return replace(copy, path=path if os.path.exists(path) else "")
    vcs = origin.get("vcs_info")
    if isinstance(vcs, dict):
        url = f"{vcs.get('vcs', 'git')}+{url}@{vcs.get('commit_id', 'HEAD')}"
    return replace(copy, url=url)


def _checkout() -> str:
    """The source tree that this module runs from, empty if it is installed as a copy."""
    package = os.path.dirname(os.path.abspath(__file__))
    root = os.path.dirname(os.path.dirname(package))
    is_tree = os.path.basename(os.path.dirname(package)) == "src" and os.path.isfile(f"{root}/pyproject.toml")
    return root if is_tree else ""


def _distribution() -> Distribution | None:
    from importlib import metadata

    try:
        return metadata.distribution(_NAME)
    except metadata.PackageNotFoundError:
        return None


def _origin(distribution: Distribution) -> dict[str, Any] | None:
    """What PEP 610's direct_url.json says; None: installed by name from an index."""
    import json

    try:
        text = distribution.read_text("direct_url.json")
        origin = json.loads(text) if text else None
    except (OSError, ValueError):
        return None
    return origin if isinstance(origin, dict) else None


def _path(url: str) -> str:
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    return url2pathname(urlsplit(url).path)


def _installer(copy: InstalledCopy) -> str:
    """pip where the environment has it, else uv, else pip after the standard library's ensurepip."""
    from importlib.util import find_spec

    python = shlex.quote(copy.python)
    if find_spec("pip") is not None:
        return f"{python} -m pip install"
    if find_spec("uv") is not None:
        return f"{python} -m uv pip install --python {python}"
    if shutil.which("uv") is None and find_spec("ensurepip") is not None:
        return f"{python} -m ensurepip && {python} -m pip install"
    return f"uv pip install --python {python}"


def _needed_by(copy: InstalledCopy, extras: tuple[str, ...]) -> list[str]:
    """The packages behind extras, for tools that cannot add an extra to what is installed."""
    import re

    needed: dict[str, None] = {}
    for line in copy.requirements:
        requirement, _, marker = line.partition(";")
        match = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", marker)
        if match and match[1] in extras:
            needed[requirement.strip()] = None
    return list(needed)


def _uv_tool(copy: InstalledCopy, receipt: str, extras: tuple[str, ...], packages: tuple[str, ...]) -> str:
    """`uv tool install` again: it replaces the earlier list, so the earlier extras and packages are repeated."""
    import tomllib

    try:
        with open(receipt, "rb") as file:
            tool = tomllib.load(file)["tool"]
        main, *others = tool["requirements"]
        if main["name"] != _NAME:
            return ""  # Longboat is an addition to another tool
        kept = tuple(str(extra) for extra in main.get("extras", ()))
        earlier = [option for entry in others for option in _with(entry)]
        python = str(tool.get("python", ""))
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    source = copy.source((*kept, *extras))
    if not source:
        return ""
    words = ["uv", "tool", "install", *(["--python", python] if python else [])]
    words += [*earlier, *(option for package in packages for option in ("--with", package))]
    return shlex.join([*words, *(["--editable"] if copy.editable else []), source])


def _with(entry: dict[str, Any]) -> list[str]:
    """A package that the user added to the tool, as the option that adds it again."""
    if "editable" in entry:
        return ["--with-editable", str(entry["editable"])]
    extras = f"[{','.join(entry['extras'])}]" if entry.get("extras") else ""
    name = f"{entry['name']}{extras}"
    for key in ("path", "directory", "url"):
        if key in entry:
            place = str(entry[key])
            return ["--with", f"{name} @ {place if '://' in place else 'file://' + place}"]
    if "git" in entry:
        return ["--with", f"{name} @ git+{entry['git']}"]
    return ["--with", f"{name}{entry.get('specifier', '')}"]
