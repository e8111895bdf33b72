"""Generations: who starts, who is ended, what restarts, what is the cause. A pure machine.

Ships into strangers' images: standard library only, Python 3.9.
"""

from __future__ import annotations

from windlass.gang.machine import At, Gang, Phase
from windlass.gang.words import (
    NO_LIFE,
    Action,
    Checkpoint,
    DumpStacks,
    Exited,
    Fault,
    Fence,
    Happening,
    Kill,
    Launch,
    Life,
    Lost,
    Notice,
    Over,
    Progress,
    Record,
    Rules,
    Seat,
    Seen,
    Start,
    Stop,
    Tick,
)

__all__ = [
    "NO_LIFE",
    "Action",
    "At",
    "Checkpoint",
    "DumpStacks",
    "Exited",
    "Fault",
    "Fence",
    "Gang",
    "Happening",
    "Kill",
    "Launch",
    "Life",
    "Lost",
    "Notice",
    "Over",
    "Phase",
    "Progress",
    "Record",
    "Rules",
    "Seat",
    "Seen",
    "Start",
    "Stop",
    "Tick",
]
