"""What the gang is told and what it asks for: its rules, events and actions, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Tuple, Union

from longboat.runtime.causes import Cause
from longboat.runtime.rank_env import Address, Peers

Seat = Tuple[str, int]
"""Role and rank."""

Incarnation = Tuple[int, int]
"""Generation and restart: which life of a seat's process is meant. (0, 0): none yet."""

NO_INCARNATION: Incarnation = (0, 0)


@dataclass(frozen=True)
class GangRules:
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
class Exited:
    """The user's process and everything it started have ended."""

    seat: Seat
    incarnation: Incarnation
    code: int
    """Exit code, -1 when a signal ended it or it never ran."""
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
class Heartbeat:
    """An agent says what it is doing: on joining, and then as its heartbeat."""

    seat: Seat
    agent: str
    """Names this very agent; its successor at the seat has another name."""
    address: Address
    incarnation: Incarnation
    """The last one that it was told to start."""
    running: bool
    exit: Optional[Exited] = None
    """How that life ended, when it did."""
    at: float = 0.0
    """When it said so, on the agent's clock."""


@dataclass(frozen=True)
class AgentLost:
    """The agent is gone and nothing that it started is left, or can go on unseen."""

    seat: Seat
    cause: Cause
    at: float = 0.0
    """When, on the driver's clock (of the kind that `Exited.at` is on); 0: some time after it was last heard."""


@dataclass(frozen=True)
class Progress:
    """A rank reported."""

    seat: Seat
    generation: int
    step: int = -1


@dataclass(frozen=True)
class CheckpointComplete:
    """A newer checkpoint is complete."""


@dataclass(frozen=True)
class PreemptionNotice:
    """The seat's machine will be taken away soon."""

    seat: Seat


@dataclass(frozen=True)
class StopRequest:
    """Somebody wants the stage to end; `now` is without grace."""

    cause: Cause
    now: bool = False


@dataclass(frozen=True)
class Fault:
    """Something that no restart can cure, seen from outside the gang (a full disk)."""

    cause: Cause


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


GangEvent = Union[
    Heartbeat, Exited, AgentLost, Progress, CheckpointComplete, PreemptionNotice, StopRequest, Fault, Tick
]


# What the gang wants done.


@dataclass(frozen=True)
class Launch:
    """Bring an agent to the seat; `keep` is the address its predecessor had."""

    seat: Seat
    keep: Optional[Address] = None


@dataclass(frozen=True)
class Start:
    """Tells an agent to begin a life."""

    seat: Seat
    incarnation: Incarnation
    peers: Peers


@dataclass(frozen=True)
class Kill:
    """End the seat's process: SIGTERM, `grace` seconds, SIGKILL."""

    seat: Seat
    incarnation: Incarnation
    grace: float


@dataclass(frozen=True)
class Fence:
    """Make sure that the seat's agent and all it started are dead; answered by Lost."""

    seat: Seat


@dataclass(frozen=True)
class DumpStacks:
    """Asks an agent what its process is doing."""

    seat: Seat
    incarnation: Incarnation


@dataclass(frozen=True)
class RecordEvent:
    """An event for the journal, written before any action that follows it."""

    ev: str
    keys: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GangEnded:
    """The gang has ended."""

    state: str
    """succeeded, failed or stopped."""
    cause: Optional[Cause] = None


Action = Union[Launch, Start, Kill, Fence, DumpStacks, RecordEvent, GangEnded]
