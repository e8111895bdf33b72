"""Stages that somebody else keeps up: a cluster's Deployments. The driver begins and ends them, and hears of them.

Where an engine gives no Services, a stage that serves is a gang as any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Mapping, Optional, Protocol, Sequence, Set, Union

from longboat.runtime import pipeline as p
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.driver.launcher import StageNote
from longboat.runtime.journal import JournalWriter


@dataclass(frozen=True)
class ServiceReady:
    """All that was asked for answers."""

    stage: str


@dataclass(frozen=True)
class ServiceEnded:
    """Nothing of it is left, or what there was before stands again."""

    stage: str
    cause: Optional[Cause] = None
    """Why it could not be brought up; None: it was asked to end."""


@dataclass(frozen=True)
class ServiceEvent:
    """Something happened to one server: an event for the journal."""

    ev: str
    stage: str
    keys: Mapping[str, Any]


News = Union[ServiceReady, ServiceEnded, ServiceEvent, StageNote]


class Services(Protocol):
    """What an engine gives the driver when it serves by itself."""

    def begin(self, stage: str) -> None:
        """Bring the stage up, or find it up already; Ready follows, or Over with a cause."""

    def end(self, stage: str) -> None:
        """Take it down; Over follows."""

    def settled(self) -> None:
        """All else is done: the run serves."""

    def fileno(self) -> int:
        """Readable when `poll` has something to tell."""

    def poll(self) -> Sequence[News]:
        """What happened since the last call."""

    def close(self) -> None:
        """The driver ends; what serves goes on."""


class ServiceStages:
    """Between the pipeline and the services: wishes one way, news the other."""

    def __init__(self, services: Services, pipeline: p.Pipeline, journal: JournalWriter) -> None:
        self.services = services
        self._pipeline, self._journal = pipeline, journal
        self._up: Set[str] = set()

    def begin(self, stage: str) -> None:
        self._up.add(stage)
        self.services.begin(stage)

    def halt(self, stage: str) -> bool:
        """False when the stage is none of ours."""
        if stage not in self._up:
            return False
        self.services.end(stage)
        return True

    def hear(self) -> List[p.Step]:
        """Writes down what happened; what the pipeline wants next."""
        steps: List[p.Step] = []
        for news in self.services.poll():
            if isinstance(news, StageNote):
                self._journal.write("note", stage=news.stage, level="warning", text=news.text)
            elif isinstance(news, ServiceEvent):
                self._journal.write(news.ev, stage=news.stage, **news.keys)
            elif isinstance(news, ServiceReady):
                steps += self._pipeline.stage_ready(news.stage)
            elif news.stage in self._up:
                self._up.discard(news.stage)
                state = "stopped" if news.cause is None else "failed"
                cause = news.cause or Cause(CauseKind.STOPPED, "stopped with the run", stage=news.stage)
                steps += self._pipeline.stage_over(news.stage, state, cause)
        return steps
