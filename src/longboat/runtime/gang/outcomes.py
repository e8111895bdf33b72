"""How a generation ends: why, who fell first, and what the journal says of each rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.gang import kill_causes
from longboat.runtime.gang.gang_events import AgentLost, Exited, Incarnation, RecordEvent, Seat
from longboat.runtime.gang.members import Member

DECIDED_OUTSIDE = frozenset(
    {CauseKind.STALLED, CauseKind.TIMED_OUT, CauseKind.DISK_FULL, CauseKind.NODE_LOST, CauseKind.PREEMPTED}
)
"""Causes that stand although ranks fell after them."""


@dataclass(frozen=True)
class GenerationOutcome:
    """How a generation is being wound up, and what comes after it."""

    state: str
    cause: Optional[Cause] = None
    again: bool = False
    grace: float = 0.0

    def stopped(self, cause: Cause, grace: float) -> GenerationOutcome:
        """Somebody wants the stage to end meanwhile: what was to come after does not, and no grace is longer."""
        grace = min(grace, self.grace)
        return GenerationOutcome("stopped", cause, grace=grace) if self.again else replace(self, grace=grace)

    def spoilt(self, cause: Cause) -> GenerationOutcome:
        """Meanwhile something befell the stage that no restart can cure."""
        return GenerationOutcome("failed", cause) if self.again else self


def first_cause(ending: GenerationOutcome, fallen: Sequence[Exited]) -> Tuple[Optional[Cause], Optional[Seat]]:
    """The cause of the earliest fall that nobody asked for; a torn connection yields to what tore it."""
    if ending.state != "failed":
        return ending.cause, None
    falls = sorted(fallen, key=lambda fall: fall.at)
    falls = [f for f in falls if f.cause is None or f.cause.kind is not CauseKind.LOST_RENDEZVOUS] or falls
    if not falls or ending.cause is not None and ending.cause.kind in DECIDED_OUTSIDE:
        return ending.cause, None
    return located(falls[0]), falls[0].seat


def located(event: Exited) -> Cause:
    """The cause of an exit, with the rank and generation that it befell."""
    cause = event.cause or Cause(CauseKind.INTERNAL, "ended for no recorded reason")
    role, rank = (cause.role, cause.rank) if cause.rank >= 0 else event.seat
    return replace(cause, role=role, rank=rank, generation=event.incarnation[0])


def counted(event: Exited, kill_cause: Optional[Cause], ending: bool) -> Exited:
    """An exit as it counts. Whom the gang itself doomed has failed; so has who was asked to end when it was not to
    (ending: it was), for then an earlier driver asked."""
    cause = kill_cause
    if cause is None and event.asked and not ending:
        cause = kill_causes.driver_lost_ending_rank()
    return event if cause is None else replace(event, cause=cause, asked=False, code=event.code or -1)


def of_loss(event: AgentLost, member: Member, incarnation: Incarnation, ending: bool) -> Exited:
    """How the process of a lost agent ended. One that was fenced fell before all others, perhaps, and so by itself."""
    at = event.at if event.at and not member.fenced else member.said_at
    return Exited(event.seat, incarnation, -1, 0, at, ending and not member.fenced, event.cause)


def ranks_ended(
    ending: GenerationOutcome, members: Mapping[Seat, Member], first: Optional[Seat]
) -> Tuple[List[RecordEvent], List[str]]:
    """What the journal is to know of every rank that it knows no end of, and who fell because of the first."""
    records, consequences = [], []
    for seat, member in members.items():
        if member.exit is None or member.recorded:
            continue
        if member.exit.ok and not member.exit.asked:
            records.append(rank_ended(member, "succeeded"))
        elif seat == first:
            records.append(rank_ended(member, "failed"))
        elif ending.state == "failed":
            consequences.append(f"{seat[0]}-{seat[1]}")
            records.append(rank_ended(member, "killed", because=first))
        else:
            records.append(rank_ended(member, "stopped"))
    return records, consequences


def rank_ended(member: Member, state: str, because: Optional[Seat] = None, left: Optional[int] = None) -> RecordEvent:
    """From here on the journal knows how the member's process ended."""
    event = member.exit
    assert event is not None
    member.recorded = True
    lost = event.cause is not None and event.cause.kind in (CauseKind.AGENT_LOST, CauseKind.NODE_LOST)
    keys: Dict[str, Any] = {
        "role": event.seat[0],
        "rank": event.seat[1],
        "gen": event.incarnation[0],
        "restart": event.incarnation[1],
        "state": "lost" if lost else state,
        "code": event.code if event.code >= 0 else None,
        "signal": event.signal or None,
        "restarts_left": left,
    }
    if state == "failed":
        keys["cause"] = located(event)
    if because is not None:
        keys["because"] = f"{because[0]}-{because[1]}"
    return RecordEvent("rank.ended", keys)


def generation_ended(
    generation: int,
    ending: GenerationOutcome,
    cause: Optional[Cause],
    again: bool,
    left: int,
    consequences: Sequence[str],
) -> RecordEvent:
    keys = {"gen": generation, "state": ending.state, "cause": cause, "again": again or None, "restarts_left": left}
    return RecordEvent("gen.ended", {**keys, "consequences": consequences or None})


def note(text: str) -> RecordEvent:
    """For whoever watches: something to know that is no event of its own."""
    return RecordEvent("note", {"text": text, "level": "warning"})
