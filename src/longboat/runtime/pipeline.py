"""The pipeline: a pure state machine that walks through the stages of a plan.

A stage starts when all stages it comes after have passed; independent stages run side by side. A failed stage is
retried as often as its `retries` allow, each attempt continuing from what the last one left. A gate compares a metric
of a stage with its target; a miss sends that stage through another attempt, up to the gate's `retries`. Attempts are
counted per stage and never reset. The first stage that fails for good ends the run: what still runs is stopped.

A serve stage passes when it is ready, and keeps running while later stages start. When only servers are left, the run
is serving; unless they are to be kept, they are stopped and the run has succeeded. If a gate sends a stage through
another attempt, servers between that stage and the gate serve the rejected model: they are stopped at once, and
started again when their turn comes.

No clock, process or file here.
"""

from __future__ import annotations

import math
from typing import Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple, Union

from longboat.runtime.causes import HOPELESS, Cause, CauseKind
from longboat.runtime.errors import FAILED, GATE_NOT_MET, INTERRUPTED, OK
from longboat.runtime.light_dataclasses import dataclass, field
from longboat.runtime.plan import Gate, Plan, Stage


@dataclass(frozen=True)
class BeginStage:
    """Start this attempt at a stage."""

    stage: str
    attempt: int


@dataclass(frozen=True)
class HaltStage:
    """Stop a running stage: another one failed for good, or a server is no longer needed."""

    stage: str
    done: bool = False
    again: bool = False
    """A gate rejected the model that it serves; it runs again."""


@dataclass(frozen=True)
class GateVerdict:
    """A gate's verdict. `passed` is None if the gate has no target."""

    stage: str
    gate: Gate
    value: Optional[float]
    passed: Optional[bool]
    attempt: int
    again: bool = False
    """It was missed, and is evaluated again after another attempt."""
    through: Tuple[str, ...] = ()
    """Stages that must run again before a missed gate is evaluated again."""


@dataclass(frozen=True)
class StageEnded:
    """A stage is done; for the journal."""

    stage: str
    state: str
    attempts: int
    cause: Optional[Cause] = None


@dataclass(frozen=True)
class StageReady:
    """A server responds; stages after it may start."""

    stage: str


@dataclass(frozen=True)
class Serving:
    """All stages are done, and the servers keep running until a user stops the run."""


@dataclass(frozen=True)
class Finished:
    """The run has ended."""

    state: str
    code: int
    cause: Optional[Cause] = None


Step = Union[BeginStage, HaltStage, GateVerdict, StageEnded, StageReady, Serving, Finished]


UNDER_WAY = ("running", "serving", "done serving")


@dataclass
class _Progress:
    """State of one stage."""

    state: str = "waiting"
    attempts: int = 0
    retries_used: int = 0


@dataclass
class Pipeline:
    """Decides which stages run now, again, or not at all."""

    plan: Plan
    passed: FrozenSet[str] = frozenset()
    """Stages that passed in an earlier part of this run."""
    attempts: Mapping[str, int] = field(default_factory=dict)
    """Attempts made in earlier parts of this run."""
    retries: Mapping[str, int] = field(default_factory=dict)
    """Retries used by an earlier driver."""
    kept: bool = False
    """An earlier driver had finished all stages and kept servers running."""
    end: Optional[Finished] = None
    """How the run must end, if an earlier driver had decided that and died before everything had stopped."""
    running: FrozenSet[str] = frozenset()
    """Stages whose gang an earlier driver left running."""
    refused: FrozenSet[str] = frozenset()
    """Servers among them whose model a gate rejected."""
    left_out: FrozenSet[str] = frozenset()
    """Stages that do not run this time."""
    keep: bool = False
    """Keep servers running when everything else is done, until a user stops the run."""

    def __post_init__(self) -> None:
        self._at: Dict[str, _Progress] = {}
        for stage in self.plan.stages:
            state = "succeeded" if stage.name in self.passed else "waiting"
            state = "running" if stage.name in self.running else state
            state = "refused" if stage.name in self.refused else state
            state = "left out" if stage.name in self.left_out and state == "waiting" else state
            used = self.retries.get(stage.name, 0)
            self._at[stage.name] = _Progress(state, self.attempts.get(stage.name, 0), used)
        self._end = self.end
        self._over = False
        self._kept = self.kept
        self._serving_reported = False
        self._metrics: Dict[str, Dict[str, float]] = {}

    def begin(self) -> List[Step]:
        halts: List[Step] = [HaltStage(name, again=True) for name, at in self._at.items() if at.state == "refused"]
        return halts + (self._advance() if self._end is None else self._give_up(self._end))

    def metric(self, stage: str, name: str, value: float) -> None:
        """Record the newest value of a metric."""
        self._metrics.setdefault(stage, {})[name] = value

    def attempt(self, stage: str) -> int:
        return self._at[stage].attempts

    def stage_over(self, name: str, state: str, cause: Optional[Cause]) -> List[Step]:
        """Handle the end of a stage's gang: succeeded, failed or stopped."""
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
        """Handle a server that responds: its stage has passed for stages after it. Repeating it is harmless."""
        if self._at[name].state != "running":
            return []
        self._at[name].state = "serving"
        return [StageReady(name), *self._advance()]

    def stop(self, cause: Cause) -> List[Step]:
        """Stop the run: no further stage starts. A run that only serves has succeeded."""
        if self._kept:
            self.keep = False
            for at in self._at.values():
                at.state = (
                    "serving" if at.state == "running" else at.state
                )  # a new driver waits until it is ready again
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
                        steps += self._evaluate(stage, stage.gate)
                        moved = self._end is None
                        if not moved:
                            break
                    else:
                        steps.append(self._begin(stage.name))
        return steps + self._finish()

    def _ready(self, stage: Stage) -> bool:
        return all(self._at[name].state in ("succeeded", "serving") for name in stage.after)

    def _evaluate(self, stage: Stage, gate: Gate) -> List[Step]:
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
        """The gated stage, and the stages between it and the gate."""
        return tuple(
            other.name
            for other in self.plan.stages
            if self._comes_after(gate, other.name) and (other.name == of or self._comes_after(other, of))
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

    def _comes_after(self, stage: Stage, name: str) -> bool:
        return any(n == name or self._comes_after(self.plan.stage(n), name) for n in stage.after)

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
            reported, self._serving_reported, self._kept = self._serving_reported, True, True
            return [] if reported else [Serving()]
        if self._end is None and serving:
            for name in serving:
                self._at[name].state = "done serving"
            return [HaltStage(name, done=True) for name in serving]
        if serving:
            return []  # they are being stopped
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
