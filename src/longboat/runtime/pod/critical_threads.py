"""Threads that the driver depends on: if one ends, the driver exits and its replacement continues."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, Callable


def begin(task: Callable[..., None], *args: Any) -> None:
    """Start a thread that must run for ever."""

    def work() -> None:
        try:
            task(*args)
            sys.stderr.write(f"the driver exits: its thread {task.__name__} ended\n")
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(1)

    threading.Thread(target=work, daemon=True).start()
