"""A gang that a test drives event by event: no clock, no process."""

from __future__ import annotations

from typing import Any, TypeVar

from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.gang.gang_events import (
    NO_INCARNATION,
    Action,
    AgentLost,
    Exited,
    GangEnded,
    GangEvent,
    GangRules,
    Heartbeat,
    Incarnation,
    RecordEvent,
    Tick,
)
from longboat.runtime.gang.machine import Gang, Phase
from longboat.runtime.gang.members import MemberState
from longboat.runtime.rank_env import Address
from longboat.runtime.seat import Seat

W0, W1, W2 = (Seat("train", "worker", rank) for rank in range(3))
CHIEF, PS = Seat("train", "chief", 0), Seat("train", "ps", 0)
TOGETHER, ALONE, SERVES = (True, False), (True, True), (False, False)

A = TypeVar("A", bound=Action)


def user_error(text: str = "ValueError: no", frame: str = "train.py:3") -> Cause:
    return Cause(CauseKind.USER_ERROR, text, exit_code=1, frame=frame, error=text)


KILLED = Cause(CauseKind.KILLED, "killed by signal 9 (SIGKILL), sender unknown", signal=9)
GONE = Cause(CauseKind.AGENT_LOST, "the agent was killed by signal 9 (SIGKILL), sender unknown")
STOPPED = Cause(CauseKind.STOPPED, "stopped by Ctrl-C")


class Driven:
    """A gang and all it has wanted so far. Agents are at 10.0.0.N, N counted over the seats."""

    def __init__(self, seats: dict[Seat, tuple[bool, bool]] | None = None, **rules: Any) -> None:
        self.now = 100.0
        self.seats = seats or {W0: TOGETHER, W1: TOGETHER}
        recover = rules.pop("recover", False)
        generation = rules.pop("generation", 0)
        budget = rules.pop("budget", None)
        self.gang = Gang(GangRules(self.seats, **rules), generation, self.now, recover=recover, budget=budget)
        self.agents = dict.fromkeys(self.seats, "first")
        self.all: list[Action] = list(self.gang.begin(self.now))

    def __call__(self, event: GangEvent) -> list[Action]:
        actions = self.gang.handle(event, self.now)
        self.all += actions
        return actions

    def address(self, seat: Seat) -> Address:
        return Address(f"10.0.0.{list(self.seats).index(seat)}", (1, 2, 3))

    def seen(
        self,
        seat: Seat,
        incarnation: Incarnation = NO_INCARNATION,
        running: bool = False,
        ended: Exited | None = None,
        **more: Any,
    ) -> list[Action]:
        address = more.pop("address", self.address(seat))
        return self(Heartbeat(seat, self.agents[seat], address, incarnation, running, ended, **more))

    def join(self, *seats: Seat) -> list[Action]:
        return [action for seat in seats or self.seats for action in self.seen(seat)]

    def beat(self) -> list[Action]:
        """A heartbeat of every member, which does what the gang thinks that it does."""
        found = []
        for seat, member in self.gang.members.items():
            incarnation = (self.gang.generation, member.restart)
            running = member.at is MemberState.RUNNING
            if member.at is not MemberState.ABSENT:
                found += self.seen(seat, incarnation, running, None if running else member.exit)
        return found

    def incarnation(self, seat: Seat) -> Incarnation:
        return (self.gang.generation, self.gang.members[seat].restart)

    def exit(self, seat: Seat, code: int = 0, cause: Cause | None = None, **more: Any) -> list[Action]:
        cause = cause or (user_error() if code > 0 else KILLED if code < 0 else None)
        return self(Exited(seat, more.pop("incarnation", self.incarnation(seat)), code, cause=cause, **more))

    def killed(self, *seats: Seat) -> list[Action]:
        """What was told to end has ended."""
        return [action for seat in seats for action in self.exit(seat, -1, signal=9, asked=True)]

    def lost(self, seat: Seat, cause: Cause = GONE, **more: Any) -> list[Action]:
        self.agents[seat] += "+"
        return self(AgentLost(seat, cause, **more))

    def tick(self, seconds: float) -> list[Action]:
        self.now += seconds
        return self(Tick())

    @property
    def over(self) -> GangEnded:
        (found,) = only(self.all, GangEnded)
        return found


def only(actions: list[Action], kind: type[A]) -> list[A]:
    return [action for action in actions if isinstance(action, kind)]


def records(actions: list[Action], ev: str) -> list[Any]:
    return [record.keys for record in only(actions, RecordEvent) if record.ev == ev]


def ends(actions: list[Action]) -> dict[str, str]:
    return {f"{keys['role']}-{keys['rank']}": keys["state"] for keys in records(actions, "rank.ended")}


def running(seats: dict[Seat, tuple[bool, bool]] | None = None, **rules: Any) -> Driven:
    it = Driven(seats, **rules)
    it.join()
    assert it.gang.phase is Phase.RUNNING
    return it
