"""Threads without which a driver would be blind or deaf: when one ends, so does the driver, and the next one goes on.

Ships into strangers' images: standard library only, Python 3.9.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, Callable


def begin(task: Callable[..., None], *args: Any) -> None:
    """A thread that is meant to run for ever."""

    def work() -> None:
        try:
            task(*args)
            sys.stderr.write(f"the driver leaves: {task.__name__} has ended\n")
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(1)

    threading.Thread(target=work, daemon=True).start()
