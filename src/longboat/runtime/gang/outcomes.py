"""How a generation ends: its cause, which rank failed first, and what the journal records for each rank."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.gang import kill_causes
from longboat.runtime.gang.gang_events import AgentLost, Exited, Incarnation, RecordEvent
from longboat.runtime.gang.members import Member
from longboat.runtime.light_dataclasses import dataclass, replace
from longboat.runtime.seat import Seat

DECIDED_OUTSIDE = frozenset(
    {CauseKind.STALLED, CauseKind.TIMED_OUT, CauseKind.DISK_FULL, CauseKind.NODE_LOST, CauseKind.PREEMPTED}
)
"""Causes that stay the cause even if ranks fail after them."""


@dataclass(frozen=True)
class GenerationOutcome:
    """How a generation ends, and whether another one follows."""

    state: str
    cause: Optional[Cause] = None
    again: bool = False
    grace: float = 0.0

    def stopped(self, cause: Cause, grace: float) -> GenerationOutcome:
        """The outcome after a stop request meanwhile: no restart follows, and the grace period only gets shorter."""
        grace = min(grace, self.grace)
        return GenerationOutcome("stopped", cause, grace=grace) if self.again else replace(self, grace=grace)

    def failed(self, cause: Cause) -> GenerationOutcome:
        """The outcome after a problem meanwhile that a restart cannot fix."""
        return GenerationOutcome("failed", cause) if self.again else self


def first_cause(ending: GenerationOutcome, failed: Sequence[Exited]) -> Tuple[Optional[Cause], Optional[Seat]]:
    """The cause of the earliest failure that the driver did not order. Lost connections rank last: another
    failure broke them."""
    if ending.state != "failed":
        return ending.cause, None
    failures = sorted(failed, key=lambda failure: failure.at)
    failures = [f for f in failures if f.cause is None or f.cause.kind is not CauseKind.LOST_RENDEZVOUS] or failures
    if not failures or ending.cause is not None and ending.cause.kind in DECIDED_OUTSIDE:
        return ending.cause, None
    return located(failures[0]), failures[0].seat


def located(event: Exited) -> Cause:
    """The cause of an exit, with its rank and generation."""
    cause = event.cause or Cause(CauseKind.INTERNAL, "exited without a recorded cause")
    seat = event.seat if cause.rank < 0 else cause.seat._replace(stage=event.seat.stage)
    return replace(cause.at(seat), generation=event.incarnation[0])


def counted(event: Exited, kill_cause: Optional[Cause], ending: bool) -> Exited:
    """An exit as the gang counts it.

    A rank that the gang killed for a cause has failed with that cause. So has a rank that was stopped on
    order while the generation was not ending: an earlier driver gave that order."""
    cause = kill_cause
    if cause is None and event.asked and not ending:
        cause = kill_causes.driver_lost_ending_rank()
    return event if cause is None else replace(event, cause=cause, asked=False, code=event.code or -1)


def of_loss(event: AgentLost, member: Member, incarnation: Incarnation, ending: bool) -> Exited:
    """The exit of a lost agent's process. A fenced agent may have failed before all others, so it counts from its
    last heartbeat and as unordered."""
    at = event.at if event.at and not member.fenced else member.last_heartbeat_at
    return Exited(event.seat, incarnation, -1, 0, at, ending and not member.fenced, event.cause)


def ranks_ended(
    ending: GenerationOutcome, members: Mapping[Seat, Member], first: Optional[Seat]
) -> Tuple[List[RecordEvent], List[str]]:
    """Journal records of all ranks whose end is not recorded yet, and the ranks that failed because of the first."""
    records, consequences = [], []
    for seat, member in members.items():
        if member.exit is None or member.recorded:
            continue
        if member.exit.ok and not member.exit.asked:
            records.append(rank_ended(member, "succeeded"))
        elif seat == first:
            records.append(rank_ended(member, "failed"))
        elif ending.state == "failed":
            consequences.append(seat.rank_name)
            records.append(rank_ended(member, "killed", because=first))
        else:
            records.append(rank_ended(member, "stopped"))
    return records, consequences


def rank_ended(member: Member, state: str, because: Optional[Seat] = None, left: Optional[int] = None) -> RecordEvent:
    """The journal record of how the member's process ended."""
    event = member.exit
    assert event is not None
    member.recorded = True
    lost = event.cause is not None and event.cause.kind in (CauseKind.AGENT_LOST, CauseKind.NODE_LOST)
    keys: Dict[str, Any] = {
        "role": event.seat.role,
        "rank": event.seat.rank,
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
        keys["because"] = because.rank_name
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
    """A warning for users that is not an event of its own."""
    return RecordEvent("note", {"text": text, "level": "warning"})
