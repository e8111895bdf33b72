"""Rules, events and actions of a gang, as values."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Tuple, Union

from longboat.runtime.causes import Cause
from longboat.runtime.light_dataclasses import dataclass, field
from longboat.runtime.rank_env import Address, Peers
from longboat.runtime.seat import Seat

Incarnation = Tuple[int, int]
"""Generation and restart number of a seat's process. (0, 0): not started yet."""

NO_INCARNATION: Incarnation = (0, 0)


@dataclass(frozen=True)
class GangRules:
    """The plan's settings for one gang: who must finish, restart budget, timeouts."""

    seats: Mapping[Seat, Tuple[bool, bool]]
    """Seat -> (must finish, restarts alone)."""
    restarts: int = 3
    timeout: float = 0.0
    stall_after: float = 0.0
    restart_on_stall: bool = True
    grace: float = 10.0
    lease: float = 15.0
    """Seconds without a heartbeat after which an agent is fenced."""
    form_timeout: float = 300.0
    """Seconds until all agents must have joined."""
    stacks_wait: float = 2.0
    """Seconds that ranks get to write their stacks before a hung gang is killed."""


# Events: what happens to the gang.


@dataclass(frozen=True)
class Exited:
    """The user's process and everything it started have exited."""

    seat: Seat
    incarnation: Incarnation
    code: int
    """Exit code; -1 if a signal killed it or it never ran."""
    signal: int = 0
    at: float = 0.0
    """Time on the agent's clock: orders failures that are reported out of order."""
    asked: bool = False
    """The driver ordered the agent to stop it."""
    cause: Optional[Cause] = None

    @property
    def ok(self) -> bool:
        return self.code == 0


@dataclass(frozen=True)
class Heartbeat:
    """An agent's state: sent when it joins, then repeated as its heartbeat."""

    seat: Seat
    agent: str
    """Unique name of this agent; its successor at the seat has another one."""
    address: Address
    incarnation: Incarnation
    """The last one that it was ordered to start."""
    running: bool
    exit: Optional[Exited] = None
    """How that incarnation ended; None while it runs."""
    at: float = 0.0
    """Time of sending, on the agent's clock."""
    failing: Optional[Exited] = None
    """How that incarnation is about to end: an exception was not caught, and exit handlers still run."""


@dataclass(frozen=True)
class AgentLost:
    """An agent is gone, and nothing that it started runs any more or can run unnoticed."""

    seat: Seat
    cause: Cause
    at: float = 0.0
    """Wall-clock time on the driver, comparable with `Exited.at`; 0: some time after its last heartbeat."""


@dataclass(frozen=True)
class Progress:
    """A rank reported progress."""

    seat: Seat
    generation: int
    step: int = -1


@dataclass(frozen=True)
class CheckpointComplete:
    """A newer checkpoint is complete."""


@dataclass(frozen=True)
class PreemptionNotice:
    """The seat's machine is about to be preempted."""

    seat: Seat


@dataclass(frozen=True)
class StopRequest:
    """A user or the pipeline stops the stage; `now` skips the grace period."""

    cause: Cause
    now: bool = False


@dataclass(frozen=True)
class Fault:
    """A problem outside the gang that a restart cannot fix, e.g. a full disk."""

    cause: Cause


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


GangEvent = Union[
    Heartbeat, Exited, AgentLost, Progress, CheckpointComplete, PreemptionNotice, StopRequest, Fault, Tick
]


# Actions: what the gang wants done.


@dataclass(frozen=True)
class Launch:
    """Launch an agent for the seat; `keep` is the address its predecessor had."""

    seat: Seat
    keep: Optional[Address] = None


@dataclass(frozen=True)
class Start:
    """Order an agent to start an incarnation."""

    seat: Seat
    incarnation: Incarnation
    peers: Peers


@dataclass(frozen=True)
class Kill:
    """Stop the seat's process: SIGTERM, `grace` seconds, SIGKILL."""

    seat: Seat
    incarnation: Incarnation
    grace: float


@dataclass(frozen=True)
class Fence:
    """Make sure that the seat's agent and everything it started are dead; answered by `AgentLost`."""

    seat: Seat


@dataclass(frozen=True)
class DumpStacks:
    """Ask an agent for the stacks of its process."""

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
