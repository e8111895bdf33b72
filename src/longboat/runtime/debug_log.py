"""Debug log of the driver, the agents and the model server, for bug reports; off unless LONGBOAT_LOG names a level.

It uses `logging`, and imports it only when it is on: that import takes longer than the start of a rank. The driver's
log has the events of the journal, with the last lines of a rank that failed; the job's secrets are hidden in both.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Mapping, Optional

from longboat.runtime.errors import LongboatError

if TYPE_CHECKING:
    import logging

VARIABLE = "LONGBOAT_LOG"
LEVELS = ("debug", "info", "warning", "error")

_logger: Optional[logging.Logger] = None


def level_of(environ: Mapping[str, str]) -> str:
    """The level that the environment names; empty: off."""
    level = environ.get(VARIABLE, "").lower()
    if level and level not in LEVELS:
        raise LongboatError(f"{VARIABLE}={environ[VARIABLE]} is not a level", f"use one of: {', '.join(LEVELS)}")
    return level


def begin(level: str, name: str, path: str = "") -> None:
    """Write lines of this level and above as `name` to a file; to stderr without a path, or if the file cannot be
    opened. Nothing without a level."""
    global _logger
    if not level:
        return
    import logging
    import time

    handler: logging.Handler = logging.StreamHandler()
    if path:
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            handler = logging.FileHandler(path, encoding="utf-8")
    formatter = logging.Formatter(f"%(asctime)s.%(msecs)03dZ %(levelname)s {name}[%(process)d] %(message)s")
    formatter.converter, formatter.default_time_format = time.gmtime, "%Y-%m-%dT%H:%M:%S"
    formatter.default_msec_format = ""
    handler.setFormatter(formatter)
    logging.raiseExceptions = False  # a full disk must not end a run
    _logger = logging.getLogger("longboat")
    _logger.handlers, _logger.propagate = [handler], False
    _logger.setLevel(level.upper())


def debug(text: str, *values: Any) -> None:
    if _logger is not None:
        _logger.debug(text, *values)


def info(text: str, *values: Any) -> None:
    if _logger is not None:
        _logger.info(text, *values)


def warning(text: str, *values: Any, error: Optional[BaseException] = None) -> None:
    """error: its traceback is written too."""
    if _logger is not None:
        _logger.warning(text, *values, exc_info=error)
