"""Folds a run's journal into its state.

Folding is pure, for finished and running runs alike. It is lenient: unknown and incomplete events change nothing. A
run without an end whose driver is gone is lost, with everything that was running in it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from longboat.runs import formatting, store
from longboat.runs.run_state import UNDER_WAY, RankFailure, RankState, RunNote, RunState, StageState, Verdict
from longboat.runtime import journal, plan, run_layout
from longboat.runtime.agent import stack_dump
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.errors import FAILED, OK
from longboat.runtime.journal import Event, cause_of
from longboat.runtime.light_dataclasses import replace
from longboat.runtime.plan import Plan

RankKey = tuple[str, int]
"""Role and rank, within a stage."""

_NOT_FINITE = ("nan", "inf", "-inf")
"""Numbers that JSON lacks; the journal has them as text."""

BIRTH = 10.0
"""Seconds that a new run may have no driver yet."""


def load(run: Path) -> RunState:
    """The current state of the run.

    The driver is checked before the journal is read, so that a run that ends in between counts as ended, not lost."""
    folder = Folder(run.name, plan_of(run))
    living = alive_or_newborn(run)
    for event in journal.stream(str(run)):
        folder.feed(event)
    return folder.state(living)


def load_or_unreadable(run: Path) -> RunState:
    """For lists: one run that cannot be read does not hide the others."""
    try:
        return load(run)
    except OSError:
        return RunState(run.name, state="unreadable")


def alive_or_newborn(run: Path) -> bool:
    """Whether the driver is alive, or may still be starting: the run is new and has no journal."""
    if store.alive(run):
        return True
    try:
        return not (run / journal.FILE).exists() and time.time() - run.stat().st_mtime < BIRTH
    except OSError:
        return False


def plan_of(run: Path) -> Plan | None:
    """The run's plan; None if it is missing or not readable."""
    try:
        return plan.from_json((run / run_layout.PLAN).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def fold(events: Iterable[Event], run_id: str = "", alive: bool = False, planned: Plan | None = None) -> RunState:
    folder = Folder(run_id, planned)
    for event in events:
        folder.feed(event)
    return folder.state(alive)


class _Rank:
    """A rank while folding: its values, and the frozen view of them, built on demand."""

    __slots__ = ("place", "values", "view")

    def __init__(self, stage: str, role: str, rank: int) -> None:
        self.values: dict[str, Any] = {"stage": stage, "role": role, "rank": rank}
        self.view: RankState | None = None
        self.place: tuple[int, int] | None = None
        """Attempt and round of its latest start."""

    def set(self, **values: Any) -> None:
        self.values.update(values)
        self.view = None

    def get(self) -> RankState:
        if self.view is None:
            self.view = RankState(**self.values)
        return self.view


class _Stage:
    __slots__ = ("failures", "ranks", "values", "view")

    def __init__(self, name: str) -> None:
        self.values: dict[str, Any] = {"name": name}
        self.ranks: dict[RankKey, _Rank] = {}
        self.failures: list[RankFailure] = []
        self.view: StageState | None = None

    def rank(self, role: str, number: int) -> _Rank:
        key = (role, number)
        if key not in self.ranks:
            self.ranks[key] = _Rank(self.values["name"], role, number)
        return self.ranks[key]

    def lose_ranks(self, t: float) -> None:
        """Mark running ranks as lost: they ended with their driver."""
        for rank in self.ranks.values():
            if rank.values.get("state") == "running":
                rank.set(state="lost", ended=t)

    def failed(self, t: float, cause: Cause | None) -> None:
        """Record a failure once, even if several events report it."""
        if cause is not None and all(
            (f.cause.kind, f.cause.where, f.cause.generation) != (cause.kind, cause.where, cause.generation)
            for f in self.failures[-3:]
        ):
            self.failures.append(RankFailure(t, cause))

    def set(self, **values: Any) -> None:
        self.values.update(values)
        self.view = None

    def get(self) -> StageState:
        if self.view is None:
            ranks = tuple(rank.get() for rank in self.ranks.values())
            reporting = [rank for rank in ranks if rank.reported]
            with_total = [rank for rank in reporting if rank.total is not None]
            with_step = [rank for rank in reporting if rank.step is not None]
            metrics: dict[str, float] = {}
            for rank in reporting:
                for name, value in rank.metrics.items():
                    metrics.setdefault(name, value)
            leader = next(iter(with_total or with_step), None)
            self.view = StageState(
                **self.values, ranks=ranks, failures=tuple(self.failures), leader=leader, metrics=metrics
            )
        return self.view


class Folder:
    """Folds events one at a time; `state` is available at any time."""

    def __init__(self, run_id: str, planned: Plan | None = None) -> None:
        self._run: dict[str, Any] = {"id": run_id, "name": run_id.rpartition("-")[0]}
        self._stages: dict[str, _Stage] = {}
        self._notes: list[RunNote] = []
        self._events = 0
        self._last = 0.0
        if planned is not None:
            self._run.update(name=planned.name, file=planned.file, engine=planned.engine)
            for stage in planned.stages:
                held = self._stages[stage.name] = _Stage(stage.name)
                held.set(kind=stage.kind, shape=stage.shape)
                for role in stage.roles:
                    for number in range(role.ranks):
                        held.rank(role.name, number)

    def feed(self, event: Event) -> None:
        self._events += 1
        t = event.get("t")
        if isinstance(t, (int, float)):
            self._last = max(self._last, float(t))
        handler = self._HANDLERS.get(event["ev"])
        if handler is not None:
            with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
                handler(self, event)

    def state(self, alive: bool) -> RunState:
        values = dict(self._run, last=self._last, events=self._events, notes=tuple(self._notes))
        if not alive and values.get("state", "starting") in UNDER_WAY:
            return self._lost(values)
        return RunState(**values, stages=tuple(stage.get() for stage in self._stages.values()))

    def _lost(self, values: dict[str, Any]) -> RunState:
        began = "started" in values
        what = (
            "the driver stopped unexpectedly (no exit status)" if began else "the driver stopped before the run started"
        )
        evidence = [
            f"no process holds the run's lock; its driver was pid {values.get('pid', '?')} on {values.get('host', '?')}"
        ]
        if not began:
            evidence = ["no process holds the run's lock, and the journal has no event"]
        cause = Cause(CauseKind.DRIVER_LOST, what, evidence=tuple(evidence))
        stages = []
        for held in self._stages.values():
            stage = held.get()
            if stage.state in ("running", "serving"):
                ranks = tuple(
                    replace(r, state="lost", ended=self._last) if r.state == "running" else r for r in stage.ranks
                )
                stage = replace(stage, state="lost", ended=self._last, cause=cause, ranks=ranks)
            stages.append(stage)
        values.update(state="lost", ended=self._last, code=FAILED, cause=cause)
        return RunState(**values, stages=tuple(stages))

    def _stage(self, event: Event) -> _Stage:
        name = str(event["stage"])
        if name not in self._stages:
            self._stages[name] = _Stage(name)
        stage = self._stages[name]
        stage.view = None
        return stage

    def _rank(self, event: Event) -> _Rank:
        return self._stage(event).rank(str(event["role"]), int(event["rank"]))

    def _run_started(self, event: Event) -> None:
        again = "started" in self._run
        if again:
            self._left_running(float(event["t"]))
        else:
            self._run["started"] = float(event["t"])
        self._run.update(state="running", ended=0.0, code=None, cause=None)
        self._run.update(pid=int(event.get("pid", 0)), host=str(event.get("host", "")))
        self._run["resumes"] = self._run.get("resumes", 0) + again
        self._run.update((key, str(event[key])) for key in ("name", "engine") if key in event)

    def _left_running(self, t: float) -> None:
        """The run was resumed: stages still marked as running ended with the old driver."""
        for name, stage in self._stages.items():
            if stage.values.get("state") in ("running", "serving"):
                cause = Cause(
                    CauseKind.DRIVER_LOST, "the driver stopped unexpectedly; the run was resumed later", stage=name
                )
                stage.failed(t, cause)
                stage.set(state="waiting")
                stage.lose_ranks(t)

    def _stage_started(self, event: Event) -> None:
        stage = self._stage(event)
        stage.values.setdefault("started", float(event["t"]))
        stage.set(state="running", ended=0.0, cause=None, note="")
        self._place(stage, event)

    def _place(self, stage: _Stage, event: Event) -> None:
        """Set attempt and round. A new one starts with all ranks waiting."""
        old = (stage.values.get("attempt", 0), stage.values.get("round", 0))
        new = (int(event.get("attempt", old[0])), int(event.get("round", old[1])))
        stage.set(attempt=new[0], round=new[1])
        if old != new:
            for rank in stage.ranks.values():
                rank.set(state="waiting", code=None, signal=0, cause=None, because="", restarts=0)

    def _stage_reused(self, event: Event) -> None:
        self._stage(event).set(state="reused")

    def _gen_started(self, event: Event) -> None:
        stage = self._stage(event)
        self._place(stage, event)
        stage.set(generation=int(event["gen"]))
        for rank in stage.ranks.values():
            if rank.values.get("state", "waiting") not in ("waiting", "succeeded"):
                rank.set(state="waiting")

    def _rank_started(self, event: Event) -> None:
        rank, stage = self._rank(event), self._stage(event).values
        started_in = (stage.get("attempt", 0), stage.get("round", 0))
        again = rank.place == started_in
        rank.place = started_in
        rank.set(
            state="running",
            gen=int(event.get("gen", 0)),
            pid=int(event.get("pid", 0)),
            started=float(event["t"]),
            restarts=rank.values.get("restarts", 0) + 1 if again else 0,
            ended=0.0,
            code=None,
            signal=0,
            cause=None,
            because="",
            hung=(),
        )

    def _rank_report(self, event: Event) -> None:
        rank = self._rank(event)
        values = rank.values
        metrics = dict(values.get("metrics", ()))
        for point in event["points"]:
            for key, value in point.items():
                if value in _NOT_FINITE:
                    value = float(value)
                if isinstance(value, (int, float)) and key != "t":
                    (values if key in ("step", "total") else metrics)[key] = value
        rank.set(metrics=metrics, reported=float(event["points"][-1].get("t", event["t"])))

    def _rank_stacks(self, event: Event) -> None:
        states = tuple(str(state) for state in event["states"])
        self._rank(event).set(hung=(*states, *(f"  {frame}" for frame in stack_dump.innermost(str(event["text"])))))

    def _rank_ended(self, event: Event) -> None:
        rank = self._rank(event)
        cause, code = cause_of(event), event.get("code")
        if cause is not None and not cause.generation:
            cause = replace(cause, generation=int(event.get("gen", 0)))
        rank.set(
            state=str(event["state"]),
            gen=int(event.get("gen", rank.values.get("gen", 0))),
            ended=float(event["t"]),
            code=code if isinstance(code, int) and code >= 0 else None,
            signal=int(event.get("signal", 0)),
            cause=cause,
            because=str(event.get("because", "")),
        )
        if not event.get("because") and event["state"] in ("failed", "killed", "lost"):
            self._stage(event).failed(float(event["t"]), cause)

    def _gen_ended(self, event: Event) -> None:
        stage = self._stage(event)
        if event.get("state") not in ("succeeded", "stopped"):
            stage.failed(float(event["t"]), cause_of(event))

    def _stage_ended(self, event: Event) -> None:
        stage, cause = self._stage(event), cause_of(event)
        stage.set(state=str(event["state"]), ended=float(event["t"]), cause=cause, note=str(event.get("note", "")))
        if event["state"] == "failed":
            stage.failed(float(event["t"]), cause)

    def _verdict(self, event: Event) -> None:
        stage = self._stage(event)
        names = ("of", "metric", "value", "at_least", "at_most")
        values: dict[str, Any] = {name: event.get(name) for name in names}
        passed, attempt = bool(event.get("passed")), int(event.get("attempt", 1))
        stage.set(verdict=Verdict(stage=stage.values["name"], passed=passed, attempt=attempt, **values))

    def _stage_ready(self, event: Event) -> None:
        serving = {key: event[key] for key in event if key not in ("t", "n", "ev", "stage")}
        self._stage(event).set(state="serving", serving=serving)

    def _run_serving(self, _event: Event) -> None:
        self._run["state"] = "serving"

    def _stopping(self, _event: Event) -> None:
        self._run["state"] = "stopping"

    def _note(self, event: Event) -> None:
        self._notes.append(RunNote(float(event["t"]), str(event["text"]), str(event.get("level", "info"))))

    def _checkpoint_damaged(self, event: Event) -> None:
        self._notes.append(RunNote(float(event["t"]), formatting.damaged_checkpoint(event), "warning"))

    def _run_ended(self, event: Event) -> None:
        state = str(event["state"])
        code = int(event.get("code", OK if state == "succeeded" else FAILED))
        t, cause = float(event["t"]), cause_of(event)
        self._run.update(state=state, ended=t, code=code, cause=cause)
        for stage in self._stages.values():  # a driver that lost its processes records only its own end
            if stage.values.get("state") == "running":
                stage.set(state="lost", ended=t, cause=cause)
                stage.lose_ranks(t)

    _HANDLERS: ClassVar[Mapping[str, Callable[[Folder, Event], None]]] = {
        "run.started": _run_started,
        "stage.started": _stage_started,
        "stage.reused": _stage_reused,
        "gen.started": _gen_started,
        "rank.started": _rank_started,
        "rank.report": _rank_report,
        "rank.stacks": _rank_stacks,
        "rank.ended": _rank_ended,
        "gen.ended": _gen_ended,
        "stage.ready": _stage_ready,
        "run.serving": _run_serving,
        "stage.ended": _stage_ended,
        "verdict": _verdict,
        "stopping": _stopping,
        "note": _note,
        "checkpoint.damaged": _checkpoint_damaged,
        "run.ended": _run_ended,
    }
