"""When somebody last asked something of this pod: one that waits for readers goes home when none comes."""

from __future__ import annotations

import os
import time

USED = "/tmp/used"


def note() -> None:
    """Whoever waits for readers counts from here."""
    try:
        with open(USED, "a", encoding="utf-8"):
            os.utime(USED)
    except OSError:
        pass


def quiet() -> float:
    """Seconds since somebody asked."""
    return time.time() - os.path.getmtime(USED)
