"""What the gang knows of one of its seats.

Ships into strangers' images: standard library only, Python 3.9.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Optional

from windlass.causes import Cause
from windlass.gang.words import Exited
from windlass.rankenv import Address


class At(Enum):
    """Where a member is."""

    ABSENT = "absent"
    IDLE = "idle"
    RUNNING = "running"
    """Told to start, and not yet known to have ended."""
    DONE = "done"
    """Ended in this generation; its agent stays."""


@dataclass
class Member:
    finishes: bool
    alone: bool
    at: At = At.ABSENT
    agent: str = ""
    address: Optional[Address] = None
    restart: int = 0
    heard: float = 0.0
    said_at: float = 0.0
    """When it last spoke, on its own clock: it died later than that."""
    progress_at: float = -1.0
    """When it last reported, or began this life if it has reported in an earlier one; -1: it never has."""
    fenced: bool = False
    """To be made dead: nothing counts from it any more but Lost."""
    launching: bool = False
    """An agent is on its way to the seat."""
    exit: Optional[Exited] = None
    doom: Optional[Cause] = None
    """Why we ended it ourselves: its exit will count as a failure of this cause."""
    knows: bool = True
    """Its agent has heard of the generation that a new driver found."""
    recorded: bool = False
    """The journal knows how its current process ended."""
