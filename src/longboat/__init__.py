"""Longboat: one job file becomes a gang of training processes, here or on Kubernetes.

Importing this package does nothing and costs nothing: every name below is imported when it is first used.
`report`, `stopping`, `checkpoint`, `bundle`, `tensorboard` and `tensors` work in any rank, with nothing installed.
This file ships with `longboat.runtime`: standard library only, Python 3.9.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing takes time in which Ctrl-C would show a traceback
if TYPE_CHECKING:
    from typing import Any, List

    from longboat.api import Run as Run
    from longboat.api import load as load
    from longboat.runtime import bundle as bundle
    from longboat.runtime import checkpoint as checkpoint
    from longboat.runtime import tensorboard as tensorboard
    from longboat.runtime import tensors as tensors
    from longboat.runtime.errors import LongboatError as LongboatError
    from longboat.runtime.rank_api import report as report
    from longboat.runtime.rank_api import stopping as stopping

__version__ = "0.1.0"

_NAMES = {
    "LongboatError": "longboat.runtime.errors",
    "Run": "longboat.api",
    "load": "longboat.api",
    "report": "longboat.runtime.rank_api",
    "stopping": "longboat.runtime.rank_api",
}
_MODULES = ("bundle", "checkpoint", "tensorboard", "tensors")

__all__ = ["__version__", *_MODULES, *_NAMES]


def __getattr__(name: str) -> Any:
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"longboat.runtime.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'longboat' has no attribute {name!r}")


def __dir__() -> List[str]:
    return sorted([*globals(), *__all__])
