"""A run, its stages and its ranks as they stand at one moment: values only.

state.py makes them from the journal; everything that shows a run reads them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from longboat.runtime import journal
from longboat.runtime.causes import Cause

UNDER_WAY = ("starting", "running", "serving", "stopping")
"""The states of a run that has not ended."""


@dataclass(frozen=True)
class RankState:
    stage: str
    role: str
    rank: int
    state: str = "waiting"
    """waiting, running, succeeded, failed, killed, stopped, lost."""
    gen: int = 0
    restarts: int = 0
    """How often it was started again within the present attempt and round."""
    pid: int = 0
    started: float = 0.0
    ended: float = 0.0
    reported: float = 0.0
    """When the last point was made; 0: it has not reported."""
    step: float | None = None
    total: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    code: int | None = None
    signal: int = 0
    cause: Cause | None = None
    because: str = ""
    """The rank whose end was this one's."""
    hung: tuple[str, ...] = ()
    """What it was doing when it hung: the state of its processes, then the innermost frames of their stacks."""

    @property
    def name(self) -> str:
        return f"{self.role}-{self.rank}"


@dataclass(frozen=True)
class Verdict:
    stage: str
    of: str
    metric: str
    value: float | None
    at_least: float | None
    at_most: float | None
    passed: bool
    attempt: int

    @property
    def condition(self) -> str:
        low = [] if self.at_least is None else [f"at least {self.at_least:g}"]
        high = [] if self.at_most is None else [f"at most {self.at_most:g}"]
        return " and ".join(low + high)


@dataclass(frozen=True)
class RankFailure:
    """Something failed at a time, whether or not it was made good by a restart."""

    t: float
    cause: Cause


@dataclass(frozen=True)
class StageState:
    name: str
    kind: str = "gang"
    shape: str = ""
    state: str = "waiting"
    """waiting, running, serving, succeeded, failed, stopped, reused, lost."""
    attempt: int = 0
    generation: int = 0
    round: int = 0
    started: float = 0.0
    ended: float = 0.0
    leader: RankState | None = None
    """The rank whose step stands for the stage: the first that knows the total, else the first that reports."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The newest value of each metric, from the first rank that reports it."""
    cause: Cause | None = None
    note: str = ""
    verdict: Verdict | None = None
    serving: Mapping[str, Any] = field(default_factory=dict)
    """Of a stage that serves, once it answers: url, page, grpc, model, and one example with its prediction."""
    ranks: tuple[RankState, ...] = ()
    failures: tuple[RankFailure, ...] = ()

    @property
    def step(self) -> float | None:
        return self.leader.step if self.leader else None

    @property
    def total(self) -> float | None:
        return self.leader.total if self.leader else None

    @property
    def restarts(self) -> int:
        return max((rank.restarts for rank in self.ranks), default=0)


@dataclass(frozen=True)
class RunNote:
    t: float
    text: str
    level: str = "info"


@dataclass(frozen=True)
class RunState:
    id: str
    name: str = ""
    state: str = "starting"
    """starting, running, serving, stopping, succeeded, failed, stopped, gate_missed, lost."""
    started: float = 0.0
    ended: float = 0.0
    last: float = 0.0
    """Time of the newest event."""
    events: int = 0
    """How many the journal has."""
    code: int | None = None
    """The exit code of the run; None while it is under way."""
    cause: Cause | None = None
    stages: tuple[StageState, ...] = ()
    notes: tuple[RunNote, ...] = ()
    pid: int = 0
    host: str = ""
    engine: str = ""
    resumes: int = 0
    file: str = ""
    """The job file."""

    @property
    def over(self) -> bool:
        """It has ended, one way or the other."""
        return self.state not in UNDER_WAY

    @property
    def stage(self) -> StageState | None:
        """The stage to speak of: the one running, else the one that failed, else the last that began."""
        for states in (("running",), ("failed", "lost", "stopped")):
            for stage in self.stages:
                if stage.state in states:
                    return stage
        begun = [stage for stage in self.stages if stage.started]
        return begun[-1] if begun else None


def starting_again(state: RunState) -> RunState:
    """A run that was let go on and whose next driver has not written yet: how it ended before is no longer true."""
    stages = tuple(replace(stage, cause=None) for stage in state.stages)
    return replace(state, state="starting", ended=0.0, code=None, cause=None, stages=stages)


def as_json(value: Any) -> Any:
    """Any of these values as JSON holds it; what JSON has no number for becomes nan, inf or -inf as text."""
    if isinstance(value, Cause):
        return journal.plain(value)
    if is_dataclass(value):
        return {item.name: as_json(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(held) for key, held in value.items()}
    if isinstance(value, (tuple, list)):
        return [as_json(held) for held in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
