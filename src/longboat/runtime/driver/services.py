"""Serve stages that the engine keeps running, e.g. Deployments: the driver starts and stops them and gets their events.

If an engine provides no `Services`, a serve stage is a gang like any other.
"""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Protocol, Sequence, Set, Union

from longboat.runtime import pipeline as p
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.driver.launcher import StageNote
from longboat.runtime.journal import JournalWriter
from longboat.runtime.light_dataclasses import dataclass


@dataclass(frozen=True)
class ServiceReady:
    """All requested servers of a stage respond."""

    stage: str


@dataclass(frozen=True)
class ServiceEnded:
    """Nothing of a stage is left, or its previous version is restored."""

    stage: str
    cause: Optional[Cause] = None
    """Why it could not be started; None: it was stopped on request."""


@dataclass(frozen=True)
class ServiceEvent:
    """A journal event about one server."""

    ev: str
    stage: str
    keys: Mapping[str, Any]


News = Union[ServiceReady, ServiceEnded, ServiceEvent, StageNote]


class Services(Protocol):
    """What an engine provides if it runs serve stages itself."""

    def begin(self, stage: str) -> None:
        """Start the stage, or find it running; `ServiceReady` follows, or `ServiceEnded` with a cause."""

    def end(self, stage: str) -> None:
        """Stop the stage; `ServiceEnded` follows."""

    def settled(self) -> None:
        """All other stages are done: the run only serves now."""

    def fileno(self) -> int:
        """Readable when `poll` has events."""

    def poll(self) -> Sequence[News]:
        """Events since the last call."""

    def close(self) -> None:
        """The driver ends; servers keep running."""


class ServiceStages:
    """Connects the pipeline with the services: orders one way, events the other."""

    def __init__(self, services: Services, pipeline: p.Pipeline, journal: JournalWriter) -> None:
        self.services = services
        self._pipeline, self._journal = pipeline, journal
        self._up: Set[str] = set()

    def begin(self, stage: str) -> None:
        self._up.add(stage)
        self.services.begin(stage)

    def halt(self, stage: str) -> bool:
        """Stop the stage; False if it is not one of the services."""
        if stage not in self._up:
            return False
        self.services.end(stage)
        return True

    def hear(self) -> List[p.Step]:
        """Journal the events; returns the pipeline's next steps."""
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
