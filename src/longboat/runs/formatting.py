"""Formats times, sizes and numbers for people, and parses durations and times.

Pure: no clock is read here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from longboat.runtime.errors import LongboatError
from longboat.runtime.journal import Event

if TYPE_CHECKING:
    import datetime

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw]?)")


def seconds(text: str) -> float:
    """Seconds of a duration such as `90`, `30s`, `5m`, `1h30m`, `7d` or `2w`."""
    rest, total = text.strip().lower(), 0.0
    if not rest:
        raise _not_a_duration(text)
    while rest:
        match = _PART.match(rest)
        if match is None or (not match[2] and match.end() != len(rest)):
            raise _not_a_duration(text)
        total += float(match[1]) * _UNITS[match[2] or "s"]
        rest = rest[match.end() :].lstrip()
    return total


def moment(text: str, now: float) -> float:
    """Seconds since the epoch of a past time: a duration before now, or an ISO time."""
    if re.fullmatch(r"\d{4}-.*", text.strip()):
        import datetime

        try:
            time = datetime.datetime.fromisoformat(text.strip()).timestamp()
        except ValueError:
            pass
        else:
            if time > now:
                raise LongboatError(
                    f"{text} is in the future", "use a time in the past or a duration before now: 30s, 5m, 2h"
                )
            return time
    try:
        return now - seconds(text)
    except LongboatError:
        raise LongboatError(
            f"{text!r} is not a time", "use a duration before now (30s, 5m, 2h, 7d) or a time such as 2026-11-15T14:30"
        ) from None


def _not_a_duration(text: str) -> LongboatError:
    return LongboatError(f"{text!r} is not a duration", "use a form such as 30s, 5m, 1h30m, 7d or 2w")


def span(value: float) -> str:
    """A duration in its two largest units: 0.4s, 12s, 3m 5s, 2h 10m, 4d 3h."""
    if value < 10:
        return f"{max(value, 0.0):.1f}s"
    rounded = round(value)
    for unit, below, size, part in (("d", "h", 86400, 3600), ("h", "m", 3600, 60), ("m", "s", 60, 1)):
        if rounded >= size:
            rest = rounded % size // part
            return f"{rounded // size}{unit} {rest}{below}" if rest else f"{rounded // size}{unit}"
    return f"{rounded}s"


def size(count: int) -> str:
    """A file size: 812 B, 4.2 kB, 1.3 GB. (For memory, in GiB: `agent.syscalls`.)"""
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1000
        if value < 999.95 or unit == "TB":
            break
    return f"{value:.1f} {unit}"


def figure(value: float) -> str:
    """A metric's value in short form: 0.6931, 12, 3.1e-05."""
    return str(int(value)) if abs(value) < 1e15 and value == int(value) else f"{value:.4g}"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def damaged_checkpoint(event: Event) -> str:
    """A `checkpoint.damaged` event as a sentence."""
    step = event.get("resume_step")
    start = "starting from the beginning" if step is None else f"resuming from the checkpoint of step {step}"
    where = f"{event['stage']}/{event['owner']}" if event.get("owner") else event["stage"]
    return f"{where}: {event['path']} is damaged: {event['reason']}; {start}"


def _local(time: float) -> datetime.datetime:
    import datetime

    return datetime.datetime.fromtimestamp(time, datetime.UTC).astimezone()


def clock(time: float) -> str:
    return _local(time).strftime("%H:%M:%S")


def day(time: float) -> str:
    return _local(time).strftime("%Y-%m-%d %H:%M:%S")
