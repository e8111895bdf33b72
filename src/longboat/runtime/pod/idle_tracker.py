"""Tracks when this pod last got a request, so that an idle one can end."""

from __future__ import annotations

import os
import time

USED = "/tmp/used"


def note() -> None:
    """Note a request."""
    try:
        with open(USED, "a", encoding="utf-8"):
            os.utime(USED)
    except OSError:
        pass


def quiet() -> float:
    """Seconds since the last request."""
    return time.time() - os.path.getmtime(USED)
