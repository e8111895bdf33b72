"""The pipeline: a pure state machine that walks the stages of a plan.

A stage starts when all those it comes after have passed; stages that do not wait for each
other run side by side. A failed stage is tried again as often as its `retries` say, each try
continuing from what the last one left. A gate compares a metric of a stage with its target; a
miss sends that stage through another attempt, up to the gate's `retries`. Attempts are counted
per stage and never reset. The first stage that fails for good ends the run: what still runs is
stopped.

A stage that serves passes when it is ready, and goes on: those after it begin while it serves. When
nothing but servers is left the run is serving; unless it is to be kept so, they are stopped and it
has succeeded. A server between a stage and the gate that sends that stage through again serves what
was just refused: it is stopped at once, and begun again when its turn comes.

No clock, process or file in here. Ships into strangers' images: standard library only, Python 3.9.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple, Union

from longboat.runtime.causes import HOPELESS, Cause, CauseKind
from longboat.runtime.errors import FAILED, GATE_NOT_MET, INTERRUPTED, OK
from longboat.runtime.plan import Gate, Plan, Stage


@dataclass(frozen=True)
class BeginStage:
    """Start this attempt at a stage."""

    stage: str
    attempt: int


@dataclass(frozen=True)
class HaltStage:
    """A stage that runs must end: another failed for good, or a server has done its work."""

    stage: str
    done: bool = False
    again: bool = False
    """A gate refused what it serves; it runs again."""


@dataclass(frozen=True)
class GateVerdict:
    """A gate's verdict. `passed` is None when there was nothing to compare with."""

    stage: str
    gate: Gate
    value: Optional[float]
    passed: Optional[bool]
    attempt: int
    again: bool = False
    """It was missed, and is asked again after another attempt at its stage."""
    through: Tuple[str, ...] = ()
    """What must run again before a gate that was missed is asked again."""


@dataclass(frozen=True)
class StageEnded:
    """What the journal says of a stage that is done with."""

    stage: str
    state: str
    attempts: int
    cause: Optional[Cause] = None


@dataclass(frozen=True)
class StageReady:
    """A server answers; what comes after it may begin."""

    stage: str


@dataclass(frozen=True)
class Serving:
    """All is done, and the servers go on until somebody stops the run."""


@dataclass(frozen=True)
class Finished:
    """All is done, and this is how it ended."""

    state: str
    code: int
    cause: Optional[Cause] = None


Step = Union[BeginStage, HaltStage, GateVerdict, StageEnded, StageReady, Serving, Finished]


UNDER_WAY = ("running", "serving", "done serving")


@dataclass
class _Progress:
    """How far a stage is."""

    state: str = "waiting"
    attempts: int = 0
    retries_used: int = 0


@dataclass
class Pipeline:
    """Which stages run now, again, or not at all."""

    plan: Plan
    passed: FrozenSet[str] = frozenset()
    """Stages that an earlier part of this run has passed."""
    attempts: Mapping[str, int] = field(default_factory=dict)
    """Attempts that earlier parts of this run made."""
    retries: Mapping[str, int] = field(default_factory=dict)
    """Retries that a driver that is gone has used."""
    kept: bool = False
    """All was done and servers went on, when a driver that is gone last looked."""
    end: Optional[Finished] = None
    """How the run must end: a driver that is gone had found it out, and did not live to see what ran on stop."""
    running: FrozenSet[str] = frozenset()
    """Stages whose gang a driver that is gone has left under way."""
    refused: FrozenSet[str] = frozenset()
    """Servers among them of a model that a gate has refused."""
    left_out: FrozenSet[str] = frozenset()
    """Stages that are not to run this time."""
    keep: bool = False
    """Servers go on when all else is done, until somebody stops the run."""

    def __post_init__(self) -> None:
        self._at: Dict[str, _Progress] = {}
        for stage in self.plan.stages:
            state = "succeeded" if stage.name in self.passed else "waiting"
            state = "running" if stage.name in self.running else state
            state = "refused" if stage.name in self.refused else state
            state = "left out" if stage.name in self.left_out and state == "waiting" else state
            spent = self.retries.get(stage.name, 0)
            self._at[stage.name] = _Progress(state, self.attempts.get(stage.name, 0), spent)
        self._end = self.end
        self._over = False
        self._kept = self.kept
        self._said_serving = False
        self._metrics: Dict[str, Dict[str, float]] = {}

    def begin(self) -> List[Step]:
        halts: List[Step] = [HaltStage(name, again=True) for name, at in self._at.items() if at.state == "refused"]
        return halts + (self._advance() if self._end is None else self._give_up(self._end))

    def metric(self, stage: str, name: str, value: float) -> None:
        """The newest value of a metric that a stage reported."""
        self._metrics.setdefault(stage, {})[name] = value

    def attempt(self, stage: str) -> int:
        return self._at[stage].attempts

    def stage_over(self, name: str, state: str, cause: Optional[Cause]) -> List[Step]:
        """The gang of a stage is done: succeeded, failed or stopped."""
        at = self._at[name]
        if at.state == "refused":
            at.state = "waiting"
            return [StageEnded(name, "stopped", at.attempts, cause), *self._advance()]
        if state == "stopped" and at.state == "done serving":
            state = "succeeded"
        if state == "succeeded":
            at.state = "succeeded"
            return [StageEnded(name, state, at.attempts), *self._advance()]
        hopeless = cause is not None and cause.kind in HOPELESS
        if state == "failed" and self._end is None and not hopeless and at.retries_used < self.plan.stage(name).retries:
            at.retries_used += 1
            return [self._begin(name)]
        at.state = state
        ended = StageEnded(name, state, at.attempts, cause)
        code = INTERRUPTED if state == "stopped" else FAILED
        return [ended, *self._give_up(Finished(state, code, cause))]

    def stage_ready(self, name: str) -> List[Step]:
        """A server answers: for those after it the stage has passed. Said again, it means nothing."""
        if self._at[name].state != "running":
            return []
        self._at[name].state = "serving"
        return [StageReady(name), *self._advance()]

    def stop(self, cause: Cause) -> List[Step]:
        """Somebody stops the run: no further stage begins. A run that only serves has done all it had to."""
        if self._kept:
            self.keep = False
            for at in self._at.values():
                at.state = "serving" if at.state == "running" else at.state  # to a new driver, until it is ready again
            return self._finish()
        return self._give_up(Finished("stopped", INTERRUPTED, cause))

    def _begin(self, name: str) -> BeginStage:
        at = self._at[name]
        at.state = "running"
        at.attempts += 1
        return BeginStage(name, at.attempts)

    def _advance(self) -> List[Step]:
        steps: List[Step] = []
        moved = self._end is None
        while moved:
            moved = False
            for stage in self.plan.stages:
                if self._at[stage.name].state == "waiting" and self._ready(stage):
                    if stage.gate is not None:
                        steps += self._ask(stage, stage.gate)
                        moved = self._end is None
                        if not moved:
                            break
                    else:
                        steps.append(self._begin(stage.name))
        return steps + self._finish()

    def _ready(self, stage: Stage) -> bool:
        return all(self._at[name].state in ("succeeded", "serving") for name in stage.after)

    def _ask(self, stage: Stage, gate: Gate) -> List[Step]:
        at = self._at[stage.name]
        at.attempts += 1
        value = self._metrics.get(gate.of, {}).get(gate.metric)
        passed = _compare(gate, value)
        through = self._between(gate.of, stage) if passed is False else ()
        again = bool(through) and value is not None and at.retries_used < gate.retries
        answer = GateVerdict(stage.name, gate, value, passed, at.attempts, again, through)
        if not through:
            at.state = "succeeded"
            return [answer, StageEnded(stage.name, "succeeded", at.attempts)]
        if again:
            at.retries_used += 1
            return [answer, *self._send_back(through), self._begin(gate.of)]
        at.state = "failed"
        cause = Cause(CauseKind.GATE_NOT_MET, _miss(gate, value, at.attempts), stage=stage.name)
        ended = StageEnded(stage.name, "failed", at.attempts, cause)
        return [answer, ended, *self._give_up(Finished("gate_missed", GATE_NOT_MET, cause))]

    def _between(self, of: str, gate: Stage) -> Tuple[str, ...]:
        """The gated stage, and those that stand between it and the gate."""
        return tuple(
            each.name
            for each in self.plan.stages
            if self._behind(gate, each.name) and (each.name == of or self._behind(each, of))
        )

    def _send_back(self, stages: Sequence[str]) -> List[Step]:
        halts: List[Step] = []
        for name in stages:
            at = self._at[name]
            if at.state == "serving":
                at.state = "refused"
                halts.append(HaltStage(name, again=True))
            else:
                at.state = "waiting"
        return halts

    def _behind(self, stage: Stage, name: str) -> bool:
        return any(n == name or self._behind(self.plan.stage(n), name) for n in stage.after)

    def _give_up(self, end: Finished) -> List[Step]:
        if self._end is None:
            self._end = end
        halts: List[Step] = [HaltStage(name) for name, at in self._at.items() if at.state in UNDER_WAY]
        return halts + self._finish()

    def _finish(self) -> List[Step]:
        if self._over or any(at.state in ("running", "done serving", "refused") for at in self._at.values()):
            return []
        serving = [name for name, at in self._at.items() if at.state == "serving"]
        if self._end is None and any(at.state == "waiting" for at in self._at.values()):
            return []
        if self._end is None and serving and self.keep:
            said, self._said_serving, self._kept = self._said_serving, True, True
            return [] if said else [Serving()]
        if self._end is None and serving:
            for name in serving:
                self._at[name].state = "done serving"
            return [HaltStage(name, done=True) for name in serving]
        if serving:
            return []  # their end was asked for
        self._over = True
        return [self._end or Finished("succeeded", OK)]


def _compare(gate: Gate, value: Optional[float]) -> Optional[bool]:
    if gate.at_least is None and gate.at_most is None:
        return None
    if value is None or math.isnan(value):
        return False
    return (gate.at_least is None or value >= gate.at_least) and (gate.at_most is None or value <= gate.at_most)


def _miss(gate: Gate, value: Optional[float], attempts: int) -> str:
    target = " and ".join(
        part
        for part in (
            f"at least {gate.at_least:g}" if gate.at_least is not None else "",
            f"at most {gate.at_most:g}" if gate.at_most is not None else "",
        )
        if part
    )
    if value is None:
        return f"stage {gate.of} never reported {gate.metric}, which must be {target}"
    tries = f"after {attempts} tries" if attempts > 1 else "at the first try"
    return f"{gate.metric} is {value:g} {tries} and must be {target}"
