"""What the gang knows of its seats: where each member is, and how many are where."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Dict, List, Mapping, Optional, Tuple

from longboat.runtime.causes import Cause
from longboat.runtime.gang.gang_events import Exited, Heartbeat, Seat
from longboat.runtime.rank_env import Address, Peers


class MemberState(Enum):
    """Where a member is."""

    ABSENT = "absent"
    IDLE = "idle"
    RUNNING = "running"
    """Told to start, and not yet known to have ended."""
    DONE = "done"
    """Ended in this generation; its agent stays."""


@dataclass
class Member:
    """A seat of the gang and the agent in it, as the gang knows it."""

    finishes: bool
    alone: bool
    at: MemberState = MemberState.ABSENT
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
    kill_cause: Optional[Cause] = None
    """Why we ended it ourselves: its exit will count as a failure of this cause."""
    knows: bool = True
    """Its agent has heard of the generation that a new driver found."""
    recorded: bool = False
    """The journal knows how its current process ended."""

    def begin(self, now: float) -> None:
        """A new life of its process."""
        self.exit, self.kill_cause, self.recorded = None, None, False
        self.progress_at = now if self.progress_at >= 0 else -1.0

    @property
    def succeeded(self) -> bool:
        return self.exit is not None and self.exit.ok


class Roster(Dict[Seat, Member]):
    """All members by seat. Counts are kept, because a gang of thousands is asked for them at every event."""

    def __init__(self, seats: Mapping[Seat, Tuple[bool, bool]]) -> None:
        super().__init__({seat: Member(finishes, alone) for seat, (finishes, alone) in seats.items()})
        self.absent = len(self)
        self.running = 0
        self.held: Dict[Seat, float] = {}
        """Seats whose agents go again and again, and when the next one is asked for."""
        self.unheard = 0
        """Of whose agents a new driver has not heard yet."""

    def move(self, member: Member, at: MemberState) -> None:
        """The one place that changes where a member is: the counts stay right."""
        self.absent += (at is MemberState.ABSENT) - (member.at is MemberState.ABSENT)
        self.running += (at is MemberState.RUNNING) - (member.at is MemberState.RUNNING)
        member.at = at

    def begin(self, now: float) -> None:
        """A new generation: all are told to start."""
        for member in self.values():
            self.move(member, MemberState.RUNNING)
            member.restart, member.heard = 0, now
            member.begin(now)

    def leave(self, member: Member, launching: bool) -> None:
        """Its agent is gone. launching: another one is on its way."""
        self.move(member, MemberState.ABSENT)
        member.agent, member.fenced, member.launching = "", False, launching

    def presume_running(self, now: float) -> None:
        """For a new driver, whom nobody has told that any of them has ended."""
        self.unheard = len(self)
        for member in self.values():
            self.move(member, MemberState.RUNNING)
            member.heard = now

    def take_back(self, member: Member, event: Heartbeat, generation: int, now: float) -> None:
        """One of those, as its agent says that it is."""
        self.unheard -= 1
        member.heard, member.agent, member.address = now, event.agent, event.address
        member.knows = event.incarnation[0] == generation
        if member.knows:
            member.restart, member.exit = event.incarnation[1], event.exit

    def let_out(self, now: float) -> List[Seat]:
        """Seats that were held long enough, and still have nobody."""
        due = [seat for seat, at in self.held.items() if now >= at]
        for seat in due:
            del self.held[seat]
        return [seat for seat in due if self[seat].at is MemberState.ABSENT]

    def who(self, at: MemberState) -> List[Seat]:
        return [seat for seat, member in self.items() if member.at is at]

    def missing(self) -> List[Seat]:
        """Seats whose agent a new driver has not heard of."""
        return [seat for seat, member in self.items() if not member.agent]

    def to_finish(self) -> int:
        return sum(member.finishes for member in self.values())

    def ended(self) -> List[Exited]:
        """How those ended that the gang still counts as running, in the order of their ends."""
        ended = [m.exit for m in self.values() if m.exit is not None and m.at is MemberState.RUNNING]
        return sorted(ended, key=lambda exit_: exit_.at)

    def fence_silent(self, now: float, lease: float) -> List[Seat]:
        """Those whose lease has run out are to be made dead; who they are."""
        silent = [
            s for s, m in self.items() if m.at is not MemberState.ABSENT and not m.fenced and now >= m.heard + lease
        ]
        for member in (self[seat] for seat in silent):
            member.fenced = True
            if member.at is not MemberState.RUNNING:
                self.move(member, MemberState.ABSENT)
                member.launching = True  # another agent may come once Lost is told, not before
        return silent

    def peers(self) -> Peers:
        found: Dict[str, List[Address]] = {}
        for (role, _), member in sorted(self.items()):
            assert member.address is not None
            found.setdefault(role, []).append(member.address)
        return {role: tuple(addresses) for role, addresses in found.items()}
