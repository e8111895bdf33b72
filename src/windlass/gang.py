"""The gang: a pure state machine for the ranks of a stage that live and die together.

Inputs are events with times, outputs are actions; there is no clock, socket, file or thread in
here, so that a simulator can drive it through any weather. It holds the promises of a
generation:

- No process of generation g+1 starts before every process of g has ended or is fenced.
- All ranks of a generation are handed the same world, and its number is recorded before use.
- The stage succeeds when every rank that must finish has exited 0 in one generation.
- The first failure is the cause; what falls after it is its consequence.

What restarts together is a property of the seat (`alone`), not of this code. A restart costs
one of the budget; a preemption costs none; a newer complete checkpoint fills the budget again.
The same failure twice without any progress in between is not tried a third time.

Ships into strangers' images: standard library only, Python 3.9.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from windlass.causes import Cause, Kind
from windlass.rankenv import Address, Peers

Seat = Tuple[str, int]
"""Role and rank."""


@dataclass(frozen=True)
class Rules:
    """What the plan says about how this gang lives."""

    seats: Mapping[Seat, Tuple[bool, bool]]
    """Seat -> (must finish, restarts alone)."""
    restarts: int = 3
    timeout: float = 0.0
    stall_after: float = 0.0
    restart_on_stall: bool = True
    grace: float = 10.0
    lease: float = 15.0
    """Silence of an agent, in seconds, after which it is fenced."""
    form_timeout: float = 300.0
    """How long a gang may take to come together."""
    stacks_wait: float = 2.0
    """How long ranks get to write their stacks before a hung gang is killed."""


# What happens to the gang.


@dataclass(frozen=True)
class Joined:
    """An agent is there and has nothing running."""

    seat: Seat
    address: Address


@dataclass(frozen=True)
class Started:
    seat: Seat
    generation: int
    restart: int
    pid: int


@dataclass(frozen=True)
class Exited:
    """The user's process and everything it started have ended."""

    seat: Seat
    generation: int
    restart: int
    code: int
    """Exit code, -1 when a signal ended it."""
    signal: int = 0
    at: float = 0.0
    """When, on the agent's clock: orders falls that are reported out of order."""
    asked: bool = False
    """The agent was told to end it."""
    cause: Optional[Cause] = None

    @property
    def ok(self) -> bool:
        return self.code == 0


@dataclass(frozen=True)
class Lost:
    """The agent is gone and nothing that it started is left."""

    seat: Seat
    cause: Cause


@dataclass(frozen=True)
class Heard:
    """A sign of life from an agent."""

    seat: Seat


@dataclass(frozen=True)
class Progress:
    """A rank reported. A hang is when nobody does."""

    seat: Seat
    generation: int
    step: int = -1


@dataclass(frozen=True)
class Checkpoint:
    """A newer checkpoint is complete."""


@dataclass(frozen=True)
class Stop:
    """Somebody wants the stage to end; `now` is without grace."""

    cause: Cause
    now: bool = False


@dataclass(frozen=True)
class Fault:
    """Something that no restart can cure, seen from outside the gang (a full disk)."""

    cause: Cause


@dataclass(frozen=True)
class Tick:
    pass


Happening = Union[Joined, Started, Exited, Lost, Heard, Progress, Checkpoint, Stop, Fault, Tick]


# What the gang wants done.


@dataclass(frozen=True)
class Launch:
    """Bring an agent to the seat; `keep` is the address its predecessor had."""

    seat: Seat
    keep: Optional[Address] = None


@dataclass(frozen=True)
class Start:
    seat: Seat
    generation: int
    restart: int
    peers: Peers


@dataclass(frozen=True)
class Kill:
    """End the seat's process: SIGTERM, `grace` seconds, SIGKILL."""

    seat: Seat
    generation: int
    grace: float


@dataclass(frozen=True)
class Fence:
    """Make sure that the seat's agent and all it started are dead; answered by Lost."""

    seat: Seat


@dataclass(frozen=True)
class DumpStacks:
    seat: Seat
    generation: int


@dataclass(frozen=True)
class Record:
    """An event for the journal, written before any action that follows it."""

    ev: str
    keys: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Over:
    state: str
    """succeeded, failed or stopped."""
    cause: Optional[Cause] = None


Action = Union[Launch, Start, Kill, Fence, DumpStacks, Record, Over]


class Phase(Enum):
    FORMING = "forming"
    RUNNING = "running"
    ENDING = "ending"
    OVER = "over"


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
    address: Optional[Address] = None
    restart: int = 0
    heard: float = 0.0
    fenced: bool = False
    exit: Optional[Exited] = None
    recorded: bool = False
    """The journal knows how its current process ended."""


@dataclass(frozen=True)
class Ending:
    """How a generation is being wound up, and what comes after it."""

    state: str
    cause: Optional[Cause] = None
    again: bool = False


class Gang:
    """One stage's gang. Feed `handle`, carry out what it returns, call it again by `deadline`."""

    def __init__(self, rules: Rules, generation: int = 0, now: float = 0.0) -> None:
        self.rules = rules
        self.generation = generation
        """The last one that was started; the next is one higher."""
        self.phase = Phase.FORMING
        self.members = {seat: Member(finishes, alone) for seat, (finishes, alone) in rules.seats.items()}
        self.budget = rules.restarts
        self.first_started: Optional[float] = None
        self._forming_since = now
        self._progress_at = now
        self._step = -1
        self._best_step = -1
        self._ending: Optional[Ending] = None
        self._falls: List[Exited] = []
        self._last_failure: Optional[Tuple[Any, ...]] = None
        self._stall_at = 0.0
        self._peers: Peers = {}
        self._reason = "first"
        self._open = False
        """A generation was started and its end is not recorded yet."""

    def begin(self, now: float) -> List[Action]:
        return [self._launch(seat, now) for seat in self.members]

    def handle(self, event: Happening, now: float) -> List[Action]:
        """Takes one event; stale and repeated ones are harmless."""
        if self.phase is Phase.OVER:
            return []
        return {
            Joined: self._joined,
            Started: self._heard,
            Exited: self._exited,
            Lost: self._lost,
            Heard: self._heard,
            Progress: self._progress,
            Checkpoint: self._checkpoint,
            Stop: self._stop,
            Fault: self._fault,
            Tick: self._tick,
        }[type(event)](event, now)

    def deadline(self) -> Optional[float]:
        """When `Tick` is due at the latest."""
        times = [m.heard + self.rules.lease for m in self.members.values() if m.at is not At.ABSENT and not m.fenced]
        if self.phase is Phase.FORMING:
            times.append(self._forming_since + self.rules.form_timeout)
        if self.phase is Phase.RUNNING:
            if self.rules.timeout and self.first_started is not None:
                times.append(self.first_started + self.rules.timeout)
            if self.rules.stall_after:
                times.append(self._stall_at + self.rules.stacks_wait if self._stall_at else self._stall_due())
        return min(times) if times else None

    # Coming together.

    def _launch(self, seat: Seat, now: float) -> Launch:
        member = self.members[seat]
        member.fenced = False
        return Launch(seat, member.address)

    def _joined(self, event: Joined, now: float) -> List[Action]:
        member = self.members.get(event.seat)
        if member is None or member.at is not At.ABSENT:
            return []
        moved = member.address is not None and member.address != event.address
        member.at, member.address, member.heard, member.fenced = At.IDLE, event.address, now, False
        if self.phase is Phase.FORMING:
            return self._start_generation(now) if self._formed() else []
        if self.phase is Phase.RUNNING and member.alone:
            if moved:
                return self._fail(
                    Cause(Kind.AGENT_LOST, "the rank came back at another address", role=event.seat[0], rank=event.seat[1]),
                    now,
                )
            return self._start_alone(event.seat)
        return []

    def _formed(self) -> bool:
        return all(m.at in (At.IDLE, At.DONE) for m in self.members.values())

    def _start_generation(self, now: float) -> List[Action]:
        self.generation += 1
        self.phase = Phase.RUNNING
        if self.first_started is None:
            self.first_started = now
        self._progress_at, self._step, self._stall_at = now, -1, 0.0
        self._falls, self._ending, self._open = [], None, True
        peers: Dict[str, List[Address]] = {}
        for (role, _), member in sorted(self.members.items()):
            assert member.address is not None
            peers.setdefault(role, []).append(member.address)
        self._peers = {role: tuple(addresses) for role, addresses in peers.items()}
        actions: List[Action] = [Record("gen.started", {"gen": self.generation, "reason": self._reason})]
        for seat, member in self.members.items():
            member.at, member.restart, member.exit, member.recorded = At.RUNNING, 0, None, False
            member.heard = now
            actions.append(Start(seat, self.generation, 0, self._peers))
        return actions

    def _start_alone(self, seat: Seat) -> List[Action]:
        member = self.members[seat]
        member.at, member.exit, member.recorded = At.RUNNING, None, False
        member.restart += 1
        return [Start(seat, self.generation, member.restart, self._peers)]

    # Signs of life.

    def _heard(self, event: Union[Started, Heard], now: float) -> List[Action]:
        member = self.members.get(event.seat)
        if member is not None:
            member.heard = now
        return []

    def _progress(self, event: Progress, now: float) -> List[Action]:
        if event.generation == self.generation:
            self._heard(Heard(event.seat), now)
            self._progress_at = now
            self._stall_at = 0.0
            self._step = max(self._step, event.step)
        return []

    def _checkpoint(self, event: Checkpoint, now: float) -> List[Action]:
        self.budget = self.rules.restarts
        self._last_failure = None
        return []

    # Falling.

    def _exited(self, event: Exited, now: float) -> List[Action]:
        member = self.members.get(event.seat)
        current = (
            member is not None
            and member.at is At.RUNNING
            and event.generation == self.generation
            and event.restart == member.restart
        )
        if member is None or not current:
            return []
        member.at, member.exit, member.heard = At.DONE, event, now
        return self._fell(event.seat, event, now)

    def _lost(self, event: Lost, now: float) -> List[Action]:
        member = self.members.get(event.seat)
        if member is None:
            return []
        was, member.at = member.at, At.ABSENT
        if was is At.RUNNING:
            fall = Exited(
                event.seat,
                self.generation,
                member.restart,
                code=-1,
                at=now,
                asked=self.phase is Phase.ENDING,
                cause=event.cause,
            )
            member.exit = fall
            return self._fell(event.seat, fall, now)
        if self.phase is Phase.FORMING:
            return self._spend(event.cause, now) or [self._launch(event.seat, now)]
        return []

    def _fell(self, seat: Seat, event: Exited, now: float) -> List[Action]:
        member = self.members[seat]
        if self.phase is Phase.ENDING:
            if not event.ok and not event.asked:
                self._falls.append(event)
            return self._conclude(now)
        if event.ok:
            recorded: List[Action] = [self._rank_ended(seat, event, "succeeded")]
            if all(m.exit is not None and m.exit.ok for m in self.members.values() if m.finishes):
                return recorded + self._end(Ending("succeeded"), self.rules.grace, now)
            return recorded
        cause = self._located(event)
        if member.alone and not self._refusal(cause):
            self.budget -= cause.kind is not Kind.PREEMPTED
            self._remember(cause)
            recorded = [self._rank_ended(seat, event, "failed")]
            if member.at is At.ABSENT:
                return [*recorded, self._launch(seat, now)]
            return recorded + self._start_alone(seat)
        self._falls.append(event)
        return self._fail(cause, now)

    def _fail(self, cause: Cause, now: float) -> List[Action]:
        """The generation is over for all: kill what is left at once, then begin again or give up."""
        refusal = self._refusal(cause)
        return self._end(Ending("failed", cause, again=not refusal), 0.0, now)

    def _refusal(self, cause: Cause) -> str:
        """Why this failure is not followed by a restart; empty when it is."""
        if cause.kind in (Kind.NOT_FOUND, Kind.NOT_EXECUTABLE, Kind.DISK_FULL, Kind.NOT_WRITABLE, Kind.MPI_MISMATCH, Kind.TIMED_OUT):
            return "a restart would not help"
        if cause.kind is Kind.PREEMPTED:
            return ""
        if self.budget <= 0:
            return "no restarts left"
        if self._last_failure == self._failure(cause):
            return "the same failure twice without progress"
        return ""

    def _failure(self, cause: Cause) -> Tuple[Any, ...]:
        """What makes two failures the same: kind, place in the code, and how far training had come."""
        return (cause.kind, cause.exit_code, cause.signal, cause.frame, cause.error, max(self._step, self._best_step))

    def _remember(self, cause: Cause) -> None:
        self._last_failure = self._failure(cause) if cause.kind is Kind.USER_ERROR else None
        self._best_step = max(self._best_step, self._step)

    def _stop(self, event: Stop, now: float) -> List[Action]:
        grace = 0.0 if event.now else self.rules.grace
        if self.phase is Phase.ENDING and self._ending is not None:
            if self._ending.state == "failed":
                self._ending = replace(self._ending, again=False, state="stopped", cause=event.cause)
            return self._kill_running(grace)
        return self._end(Ending("stopped", event.cause), grace, now)

    def _fault(self, event: Fault, now: float) -> List[Action]:
        if self.phase is Phase.ENDING and self._ending is not None:
            if self._ending.again:
                self._ending = Ending("failed", event.cause)
            return []
        return self._end(Ending("failed", event.cause), 0.0, now)

    # Winding up a generation.

    def _end(self, ending: Ending, grace: float, now: float) -> List[Action]:
        self.phase, self._ending = Phase.ENDING, ending
        return self._kill_running(grace) + self._conclude(now)

    def _kill_running(self, grace: float) -> List[Action]:
        return [Kill(seat, self.generation, grace) for seat, m in self.members.items() if m.at is At.RUNNING]

    def _conclude(self, now: float) -> List[Action]:
        """Once nobody runs: say how the generation ended, then go on to the next or stop."""
        ending = self._ending
        if ending is None or any(m.at is At.RUNNING for m in self.members.values()):
            return []
        cause, first = self._first_cause(ending)
        consequences = []
        actions: List[Action] = []
        for seat, member in self.members.items():
            if member.exit is None or member.recorded:
                continue
            if member.exit.ok and not member.exit.asked:
                actions.append(self._rank_ended(seat, member.exit, "succeeded"))
            elif seat == first:
                actions.append(self._rank_ended(seat, member.exit, "failed"))
            elif ending.state == "failed":
                consequences.append(f"{seat[0]}-{seat[1]}")
                actions.append(self._rank_ended(seat, member.exit, "killed", because=first))
            else:
                actions.append(self._rank_ended(seat, member.exit, "stopped"))
        if self._open:
            self._open = False
            actions.append(
                Record(
                    "gen.ended",
                    {
                        "gen": self.generation,
                        "state": ending.state,
                        "cause": cause,
                        "consequences": consequences or None,
                    },
                )
            )
        if not ending.again:
            self.phase = Phase.OVER
            if ending.state == "failed" and cause is not None:
                why = self._refusal(cause)
                if self.rules.restarts and why.startswith("the same"):
                    actions.append(Record("note", {"text": f"not restarted: {why}", "level": "warning"}))
            return [*actions, Over(ending.state, cause)]
        assert cause is not None
        self.budget -= cause.kind is not Kind.PREEMPTED
        self._remember(cause)
        return actions + self._form_again(cause, now)

    def _form_again(self, cause: Cause, now: float) -> List[Action]:
        self.phase, self._forming_since = Phase.FORMING, now
        self._reason = cause.kind.value
        actions: List[Action] = [self._launch(seat, now) for seat, m in self.members.items() if m.at is At.ABSENT]
        return actions if actions else self._start_generation(now)

    def _first_cause(self, ending: Ending) -> Tuple[Optional[Cause], Optional[Seat]]:
        """The cause of the earliest fall that nobody asked for; a torn connection yields to what tore it."""
        if ending.state != "failed":
            return ending.cause, None
        falls = sorted(self._falls, key=lambda fall: fall.at)
        torn = (Kind.LOST_RENDEZVOUS,)
        falls = [f for f in falls if f.cause is None or f.cause.kind not in torn] or falls
        decided_outside = ending.cause is not None and ending.cause.kind in (
            Kind.STALLED,
            Kind.TIMED_OUT,
            Kind.DISK_FULL,
            Kind.NODE_LOST,
        )
        if not falls or decided_outside:
            return ending.cause, None
        return self._located(falls[0]), falls[0].seat

    def _located(self, event: Exited) -> Cause:
        cause = event.cause or Cause(Kind.INTERNAL, "ended for no recorded reason")
        role, rank = event.seat
        if cause.rank >= 0:
            role, rank = cause.role, cause.rank
        return replace(cause, role=role, rank=rank, generation=event.generation)

    def _rank_ended(self, seat: Seat, event: Exited, state: str, because: Optional[Seat] = None) -> Record:
        keys: Dict[str, Any] = {
            "role": seat[0],
            "rank": seat[1],
            "gen": event.generation,
            "restart": event.restart,
            "state": "lost" if event.cause is not None and event.cause.kind is Kind.AGENT_LOST else state,
            "code": event.code if event.code >= 0 else None,
            "signal": event.signal or None,
        }
        self.members[seat].recorded = True
        if state == "failed":
            keys["cause"] = self._located(event)
        if because is not None:
            keys["because"] = f"{because[0]}-{because[1]}"
        return Record("rank.ended", keys)

    # Time.

    def _stall_due(self) -> float:
        return self._progress_at + self.rules.stall_after

    def _tick(self, event: Tick, now: float) -> List[Action]:
        actions: List[Action] = []
        for seat, member in self.members.items():
            if member.at is not At.ABSENT and not member.fenced and now >= member.heard + self.rules.lease:
                member.fenced = True
                actions.append(Fence(seat))
        if self.phase is Phase.FORMING and now >= self._forming_since + self.rules.form_timeout:
            return actions + self._never_formed(now)
        if self.phase is not Phase.RUNNING:
            return actions
        if self.rules.timeout and self.first_started is not None and now >= self.first_started + self.rules.timeout:
            text = f"the stage ran longer than its timeout of {self.rules.timeout:g} s"
            return actions + self._end(Ending("failed", Cause(Kind.TIMED_OUT, text)), self.rules.grace, now)
        if self.rules.stall_after and now >= self._stall_due():
            return actions + self._stalled(now)
        return actions

    def _stalled(self, now: float) -> List[Action]:
        if not self._stall_at:
            self._stall_at = now
            return [DumpStacks(seat, self.generation) for seat, m in self.members.items() if m.at is At.RUNNING]
        if now < self._stall_at + self.rules.stacks_wait:
            return []
        text = f"no rank reported progress for {self.rules.stall_after:g} s"
        cause = Cause(Kind.STALLED, text, generation=self.generation)
        if self.rules.restart_on_stall:
            return self._fail(cause, now)
        return self._end(Ending("failed", cause), 0.0, now)

    def _never_formed(self, now: float) -> List[Action]:
        missing = [f"{role}-{rank}" for (role, rank), m in self.members.items() if m.at is At.ABSENT]
        text = f"the gang did not come together within {self.rules.form_timeout:g} s: {_some(missing)} missing"
        return self._end(Ending("failed", Cause(Kind.LOST_RENDEZVOUS, text)), 0.0, now)

    def _spend(self, cause: Cause, now: float) -> List[Action]:
        """Pays for an agent that fell before it ran anything; actions only when it cannot."""
        if self._refusal(cause):
            return self._end(Ending("failed", cause), 0.0, now)
        self.budget -= cause.kind is not Kind.PREEMPTED
        return []


def _some(names: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
