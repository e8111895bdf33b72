"""How a generation ends: why, who fell first, and what the journal says of each rank.

Ships into strangers' images: standard library only, Python 3.9.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from windlass.causes import Cause, Kind
from windlass.gang.members import Member
from windlass.gang.words import Exited, Record, Seat

DECIDED_OUTSIDE = frozenset({Kind.STALLED, Kind.TIMED_OUT, Kind.DISK_FULL, Kind.NODE_LOST, Kind.PREEMPTED})
"""Causes that stand although ranks fell after them."""


@dataclass(frozen=True)
class Ending:
    """How a generation is being wound up, and what comes after it."""

    state: str
    cause: Optional[Cause] = None
    again: bool = False
    grace: float = 0.0


def first_cause(ending: Ending, fallen: Sequence[Exited]) -> Tuple[Optional[Cause], Optional[Seat]]:
    """The cause of the earliest fall that nobody asked for; a torn connection yields to what tore it."""
    if ending.state != "failed":
        return ending.cause, None
    falls = sorted(fallen, key=lambda fall: fall.at)
    falls = [f for f in falls if f.cause is None or f.cause.kind is not Kind.LOST_RENDEZVOUS] or falls
    if not falls or ending.cause is not None and ending.cause.kind in DECIDED_OUTSIDE:
        return ending.cause, None
    return located(falls[0]), falls[0].seat


def located(event: Exited) -> Cause:
    """The cause of an exit, with the rank and generation that it befell."""
    cause = event.cause or Cause(Kind.INTERNAL, "ended for no recorded reason")
    role, rank = (cause.role, cause.rank) if cause.rank >= 0 else event.seat
    return replace(cause, role=role, rank=rank, generation=event.life[0])


def ranks_ended(
    ending: Ending, members: Mapping[Seat, Member], first: Optional[Seat]
) -> Tuple[List[Record], List[str]]:
    """What the journal is to know of every rank that it knows no end of, and who fell because of the first."""
    records, consequences = [], []
    for seat, member in members.items():
        if member.exit is None or member.recorded:
            continue
        member.recorded = True
        if member.exit.ok and not member.exit.asked:
            records.append(rank_ended(member.exit, "succeeded"))
        elif seat == first:
            records.append(rank_ended(member.exit, "failed"))
        elif ending.state == "failed":
            consequences.append(f"{seat[0]}-{seat[1]}")
            records.append(rank_ended(member.exit, "killed", because=first))
        else:
            records.append(rank_ended(member.exit, "stopped"))
    return records, consequences


def rank_ended(event: Exited, state: str, because: Optional[Seat] = None, left: Optional[int] = None) -> Record:
    lost = event.cause is not None and event.cause.kind in (Kind.AGENT_LOST, Kind.NODE_LOST)
    keys: Dict[str, Any] = {
        "role": event.seat[0],
        "rank": event.seat[1],
        "gen": event.life[0],
        "restart": event.life[1],
        "state": "lost" if lost else state,
        "code": event.code if event.code >= 0 else None,
        "signal": event.signal or None,
        "restarts_left": left,
    }
    if state == "failed":
        keys["cause"] = located(event)
    if because is not None:
        keys["because"] = f"{because[0]}-{because[1]}"
    return Record("rank.ended", keys)
