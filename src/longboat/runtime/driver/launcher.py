"""The interface of an engine's launcher: it brings agents to seats and reports those that are gone."""

from __future__ import annotations

from typing import Protocol, Sequence, Union

from longboat.runtime.causes import Cause
from longboat.runtime.light_dataclasses import dataclass
from longboat.runtime.seat import Seat


@dataclass(frozen=True)
class AgentGone:
    """An agent has ended, and nothing that it started is left."""

    seat: Seat
    cause: Cause


@dataclass(frozen=True)
class Unrecoverable:
    """A problem at a seat that another attempt cannot fix: the stage fails."""

    seat: Seat
    cause: Cause


@dataclass(frozen=True)
class StageNote:
    """A note for the journal about a stage, e.g. what its pods wait for."""

    stage: str
    text: str


LauncherEvent = Union[AgentGone, Unrecoverable, StageNote]


class Launcher(Protocol):
    """Brings agents to seats; each engine has its own."""

    def launch(self, seat: Seat, ports: Sequence[int]) -> None:
        """Start an agent; it will join by itself."""

    def fence(self, seat: Seat) -> None:
        """Kill the seat's agent and everything below it; `AgentGone` follows."""

    def release(self, seat: Seat) -> None:
        """Forget the seat's agent: it was dismissed and ends by itself, which is not reported. The seat may be launched
        again."""

    def is_current(self, seat: Seat, agent: str) -> bool:
        """Whether this agent is the one launched for the seat; an agent that was given up is not accepted again."""

    def fileno(self) -> int:
        """Readable when `poll` has events."""

    def poll(self) -> Sequence[LauncherEvent]:
        """Events since the last call."""

    def close(self) -> None:
        """Kill every agent and process; returns when nothing is left."""
