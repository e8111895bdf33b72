"""What a training script may call: `longboat.report(...)` and `longboat.stopping()`.

Both work in any process that a rank starts, and do something sensible outside of Longboat too
(a line on stdout; False), so that a script needs no `if`. Reports go to a file of the rank with
one append each: nothing is buffered, so a killed rank loses none.
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
    """Say how far this rank is: `report(step=10, total=100, loss=0.3)`.

    Metrics are numbers; anything that `float()` takes will do, a framework's scalar too.
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
    """A record for the agent; False outside of Longboat."""
    path = os.environ.get("LONGBOAT_REPORT_FILE")
    if not path:
        return False
    line = json.dumps(record, separators=(",", ":")) + "\n"
    try:
        os.write(_descriptor(path), line.encode())
    except OSError:
        pass  # a full disk must not end the training; the driver notices it by itself
    return True


def number(value: Any, name: str) -> Union[int, float, str]:
    """A metric as JSON holds it; what JSON has no number for becomes nan, inf or -inf as text."""
    if isinstance(value, (bool, int)):
        return int(value)
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"longboat.report: {name}={value!r} is not a number") from None
    return found if math.isfinite(found) else str(found)


def stopping() -> bool:
    """True once this rank was asked to stop: save what is dear, then exit.

    The first call takes over SIGTERM, which until then ends the process at once.
    """
    global _listening
    if not _listening:
        _listening = True
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) in (
            signal.SIG_DFL,
            None,
        ):
            signal.signal(signal.SIGTERM, _remember)
    return _stop_asked


def _remember(*_: Any) -> None:
    global _stop_asked
    _stop_asked = True


def _descriptor(path: str) -> int:
    """The report file of this process: a fork must not share the parent's offset-free descriptor by accident."""
    global _file
    if _file[0] != os.getpid():
        _file = (os.getpid(), os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644))
    return _file[1]
