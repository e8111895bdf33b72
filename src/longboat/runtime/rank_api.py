"""Functions for training scripts: `longboat.report(...)` and `longboat.stopping()`.

Both work in any process that a rank starts, and also outside of Longboat (a line on stdout; False), so scripts need no
`if`. Each report is one append to the rank's report file, without a buffer, so a killed rank loses none.
"""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from typing import Any, Dict, Optional, Tuple, Union

_file: Tuple[int, int] = (-1, -1)
_stop_asked = False
_listening = False


def report(step: Optional[int] = None, total: Optional[int] = None, **metrics: Any) -> None:
    """Report this rank's progress: `report(step=10, total=100, loss=0.3)`.

    Metrics are numbers, or anything that `float()` accepts, such as a framework's scalar.
    """
    point: Dict[str, Union[int, float, str]] = {"t": round(time.time(), 6)}
    if step is not None:
        point["step"] = int(step)
    if total is not None:
        point["total"] = int(total)
    for name, value in metrics.items():
        point[name] = number(value, name)
    if not append(point):
        del point["t"]
        print("longboat:", *(f"{name}={value}" for name, value in point.items()), flush=True)


def append(record: Dict[str, Any]) -> bool:
    """Append a record for the agent; False outside of Longboat."""
    path = os.environ.get("LONGBOAT_REPORT_FILE")
    if not path:
        return False
    line = json.dumps(record, separators=(",", ":")) + "\n"
    try:
        os.write(_descriptor(path), line.encode())
    except OSError:
        pass  # a full disk must not end the training; the driver notices it itself
    return True


def number(value: Any, name: str) -> Union[int, float, str]:
    """A metric as JSON holds it; values without a JSON number become the text nan, inf or -inf."""
    if isinstance(value, (bool, int)):
        return int(value)
    try:
        result = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"longboat.report: {name}={value!r} is not a number") from None
    return result if math.isfinite(result) else str(result)


def stopping() -> bool:
    """True once Longboat has asked this rank to stop: save what matters, then exit.

    The first call takes over SIGTERM, which ends the process at once until then.
    """
    global _listening
    if not _listening:
        _listening = True
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) in (
            signal.SIG_DFL,
            None,
        ):
            signal.signal(signal.SIGTERM, _note_stop)
    return _stop_asked


def _note_stop(*_: Any) -> None:
    global _stop_asked
    _stop_asked = True


def _descriptor(path: str) -> int:
    """The report file, opened once in each process: a forked child opens its own."""
    global _file
    if _file[0] != os.getpid():
        _file = (os.getpid(), os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644))
    return _file[1]
