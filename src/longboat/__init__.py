"""Longboat: one job file becomes a gang of training processes, here or on Kubernetes.

Importing this package does nothing and costs nothing: every name below is fetched from its
room when it is first used. `report`, `stopping`, `checkpoint` and `bundle` work in any rank, with nothing installed.

Ships into strangers' images: standard library only, Python 3.9.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from longboat import bundle as bundle
    from longboat import checkpoint as checkpoint
    from longboat._rank import report as report
    from longboat._rank import stopping as stopping
    from longboat.api import Run as Run
    from longboat.api import load as load

__version__ = "0.1.0"

_ROOMS = {
    "report": "longboat._rank",
    "stopping": "longboat._rank",
    "load": "longboat.api",
    "Run": "longboat.api",
}

_MODULES = ("bundle", "checkpoint")

__all__ = ["__version__", "bundle", "checkpoint", *_ROOMS]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"longboat.{name}")
    if name in _ROOMS:
        return getattr(importlib.import_module(_ROOMS[name]), name)
    raise AttributeError(f"module 'longboat' has no attribute {name!r}")


def __dir__() -> List[str]:
    return sorted([*globals(), *_ROOMS])
