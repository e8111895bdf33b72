"""What an engine gives the driver: a way to bring agents to seats, and news of those that are gone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Sequence, Union

from longboat.runtime.causes import Cause
from longboat.runtime.driver.agent_links import Seat


@dataclass(frozen=True)
class AgentGone:
    """An agent has ended, and nothing that it started is left."""

    seat: Seat
    cause: Cause


@dataclass(frozen=True)
class Unrecoverable:
    """Whatever else is tried at this seat would end like this: the stage fails."""

    seat: Seat
    cause: Cause


@dataclass(frozen=True)
class StageNote:
    """Something an engine knows of a stage that a reader of the journal should: what its agents wait for."""

    stage: str
    text: str


LauncherEvent = Union[AgentGone, Unrecoverable, StageNote]


class Launcher(Protocol):
    """What an engine gives the driver: a way to bring agents to seats."""

    def launch(self, seat: Seat, ports: Sequence[int]) -> None:
        """Start an agent; it will join by itself."""

    def fence(self, seat: Seat) -> None:
        """Kill the seat's agent and all below it; Gone follows."""

    def release(self, seat: Seat) -> None:
        """Its agent was told goodbye and ends by itself: that is no news, and the seat may be launched anew."""

    def is_current(self, seat: Seat, agent: str) -> bool:
        """Whether an agent is the one that was brought to the seat; one that was given up is not let in again."""

    def fileno(self) -> int:
        """Readable when `poll` has something to tell."""

    def poll(self) -> Sequence[LauncherEvent]:
        """Agents that have ended since the last call, and what else there is to say."""

    def close(self) -> None:
        """End every agent and process; returns when nothing is left."""
