"""The gang's members: the state of each seat and its agent, and how many are in which state."""

from __future__ import annotations

from enum import Enum
from typing import Dict, List, Mapping, Optional, Tuple

from longboat.runtime.causes import Cause
from longboat.runtime.gang.gang_events import Exited, Heartbeat
from longboat.runtime.light_dataclasses import dataclass
from longboat.runtime.rank_env import Address, Peers
from longboat.runtime.seat import Seat


class MemberState(Enum):
    """State of a member."""

    ABSENT = "absent"
    IDLE = "idle"
    RUNNING = "running"
    """Ordered to start, and not known to have ended."""
    DONE = "done"
    """Ended in this generation; its agent stays."""


@dataclass
class Member:
    """A seat of the gang and its agent, as far as the gang knows."""

    finishes: bool
    alone: bool
    at: MemberState = MemberState.ABSENT
    agent: str = ""
    address: Optional[Address] = None
    restart: int = 0
    heard: float = 0.0
    last_heartbeat_at: float = 0.0
    """Time of its last heartbeat on its own clock: it died later than that."""
    progress_at: float = -1.0
    """When it last reported, or started this incarnation if it reported in an earlier one; -1: never."""
    fenced: bool = False
    """Being killed: only AgentLost counts from it now."""
    launching: bool = False
    """An agent is on its way to the seat."""
    exit: Optional[Exited] = None
    kill_cause: Optional[Cause] = None
    """Why the gang killed it: its exit counts as a failure with this cause."""
    failing: bool = False
    """An uncaught exception is ending its process; its agent kills it after the grace period."""
    knows: bool = True
    """Its agent knows the generation that a restarted driver found."""
    recorded: bool = False
    """The journal records how its current process ended."""

    def begin(self, now: float) -> None:
        """Start a new incarnation."""
        self.exit, self.kill_cause, self.recorded, self.failing = None, None, False, False
        self.progress_at = now if self.progress_at >= 0 else -1.0

    @property
    def succeeded(self) -> bool:
        return self.exit is not None and self.exit.ok


class Roster(Dict[Seat, Member]):
    """All members by seat. Counts are kept up to date: a gang of thousands needs them at every event."""

    def __init__(self, seats: Mapping[Seat, Tuple[bool, bool]]) -> None:
        super().__init__({seat: Member(finishes, alone) for seat, (finishes, alone) in seats.items()})
        self.absent = len(self)
        self.running = 0
        self.held: Dict[Seat, float] = {}
        """Seats whose agents keep getting lost, and when to launch the next one."""
        self.not_rejoined = 0
        """Agents that a restarted driver still waits for."""

    def move(self, member: Member, at: MemberState) -> None:
        """Change a member's state; the only place that does, so the counts stay right."""
        self.absent += (at is MemberState.ABSENT) - (member.at is MemberState.ABSENT)
        self.running += (at is MemberState.RUNNING) - (member.at is MemberState.RUNNING)
        member.at = at

    def begin(self, now: float) -> None:
        """Start a new generation: every member is ordered to start."""
        for member in self.values():
            self.move(member, MemberState.RUNNING)
            member.restart, member.heard = 0, now
            member.begin(now)

    def leave(self, member: Member, launching: bool) -> None:
        """Remove a lost agent. launching: its replacement is on its way."""
        self.move(member, MemberState.ABSENT)
        member.agent, member.fenced, member.launching = "", False, launching

    def stop_waiting(self) -> None:
        """Give failing members no more time for their exit handlers."""
        for member in self.values():
            member.failing = False

    def presume_running(self, now: float) -> None:
        """Count all members as running: a restarted driver has not heard of any that ended."""
        self.not_rejoined = len(self)
        for member in self.values():
            self.move(member, MemberState.RUNNING)
            member.heard = now

    def rejoin(self, member: Member, event: Heartbeat, generation: int, now: float) -> None:
        """Update a member from the first heartbeat that a restarted driver gets from its agent."""
        self.not_rejoined -= 1
        member.heard, member.agent, member.address = now, event.agent, event.address
        member.knows = event.incarnation[0] == generation
        if member.knows:
            member.restart, member.exit = event.incarnation[1], event.exit

    def release_held(self, now: float) -> List[Seat]:
        """Seats whose pause is over and that still have no agent."""
        due = [seat for seat, at in self.held.items() if now >= at]
        for seat in due:
            del self.held[seat]
        return [seat for seat in due if self[seat].at is MemberState.ABSENT]

    def seats_in(self, at: MemberState) -> List[Seat]:
        return [seat for seat, member in self.items() if member.at is at]

    def missing(self) -> List[Seat]:
        """Seats whose agent a restarted driver has not heard from."""
        return [seat for seat, member in self.items() if not member.agent]

    def to_finish(self) -> int:
        return sum(member.finishes for member in self.values())

    def ended(self) -> List[Exited]:
        """Exits of members that still count as running, earliest first."""
        ended = [m.exit for m in self.values() if m.exit is not None and m.at is MemberState.RUNNING]
        return sorted(ended, key=lambda exit_: exit_.at)

    def fence_silent(self, now: float, lease: float) -> List[Seat]:
        """Fence members whose lease has run out; returns their seats."""
        silent = [
            s for s, m in self.items() if m.at is not MemberState.ABSENT and not m.fenced and now >= m.heard + lease
        ]
        for member in (self[seat] for seat in silent):
            member.fenced = True
            if member.at is not MemberState.RUNNING:
                self.move(member, MemberState.ABSENT)
                member.launching = True  # a replacement may start only after AgentLost
        return silent

    def peers(self) -> Peers:
        addresses: Dict[str, List[Address]] = {}
        for seat, member in sorted(self.items()):
            assert member.address is not None
            addresses.setdefault(seat.role, []).append(member.address)
        return {role: tuple(of_role) for role, of_role in addresses.items()}
