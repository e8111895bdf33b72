"""State of a run, its stages and its ranks at one moment: values only.

`journal_fold` makes them from the journal; everything that shows a run reads them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from longboat.runtime import journal
from longboat.runtime.causes import Cause
from longboat.runtime.light_dataclasses import dataclass, field, fields, is_dataclass, replace

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
    """Restarts in the current attempt and round."""
    pid: int = 0
    started: float = 0.0
    ended: float = 0.0
    reported: float = 0.0
    """Time of the last report; 0 if there is none."""
    step: float | None = None
    total: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    code: int | None = None
    signal: int = 0
    cause: Cause | None = None
    because: str = ""
    """The rank whose failure ended this one."""
    hung: tuple[str, ...] = ()
    """What it was doing when it hung: states of its processes, then the innermost frames of their stacks."""

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
    """A failure and its time, whether or not the run recovered from it."""

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
    """The rank whose step is shown for the stage: the first with a total, else the first that reports."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Latest value of each metric, from the first rank that reports it."""
    cause: Cause | None = None
    note: str = ""
    verdict: Verdict | None = None
    serving: Mapping[str, Any] = field(default_factory=dict)
    """Of a serving stage, once it is ready: url, page, grpc, model, and one example with its prediction."""
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
    """starting, running, serving, stopping, succeeded, failed, stopped, gate_missed, lost; unreadable in lists."""
    started: float = 0.0
    ended: float = 0.0
    last: float = 0.0
    """Time of the latest event."""
    events: int = 0
    """Number of events in the journal."""
    code: int | None = None
    """Exit code of the run; None until it ends."""
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
        """Whether the run has ended."""
        return self.state not in UNDER_WAY

    @property
    def stage(self) -> StageState | None:
        """The stage to show: the running one, else the failed one, else the last one started."""
        for states in (("running",), ("failed", "lost", "stopped")):
            for stage in self.stages:
                if stage.state in states:
                    return stage
        begun = [stage for stage in self.stages if stage.started]
        return begun[-1] if begun else None


def starting_again(state: RunState) -> RunState:
    """State of a resumed run whose new driver has not written yet: the old outcome no longer holds."""
    stages = tuple(replace(stage, cause=None) for stage in state.stages)
    return replace(state, state="starting", ended=0.0, code=None, cause=None, stages=stages)


def as_json(value: Any) -> Any:
    """The value as JSON; numbers that JSON lacks become the texts nan, inf and -inf."""
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
