"""From the state of a run to an explanation that a person can act on.

The facts come from the journal alone: what is not known is not said. How each kind of cause is
put into words stands in told.py.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from longboat.runs import formatting
from longboat.runs.cause_texts import CRASHED, CRASHES, LOGS, RESUME, STATUS, UNREPORTED, WORDS
from longboat.runs.run_state import RankFailure, RankState, RunState, StageState, Verdict
from longboat.runtime.causes import Cause, CauseKind, signal_name

ATTACH, STOP, LS = "longboat attach {run}", "longboat stop {run}", "longboat ls {run}"
LINE_MOST = 100
"""Characters of a rank's last line in a headline."""

NEXT: Mapping[str, tuple[str, ...]] = {
    "starting": (ATTACH, STOP),
    "running": (ATTACH, "longboat logs -f {run}", STOP),
    "serving": ("longboat logs -f {run}", STOP),
    "stopping": (ATTACH,),
    "succeeded": (LS, "longboat logs {run}"),
    "stopped": (RESUME, "longboat logs {run}"),
}


@dataclass(frozen=True)
class Explanation:
    run: str
    state: str
    headline: str
    """One line: the run, how it stands, and why."""
    where: str = ""
    when: str = ""
    facts: tuple[str, ...] = ()
    """Frame, error, exit, signal: one sentence each."""
    evidence: tuple[str, ...] = ()
    hung: tuple[str, ...] = ()
    """What ranks that hung were doing."""
    lines: tuple[str, ...] = ()
    """The last that the rank printed."""
    consequences: tuple[str, ...] = ()
    """What fell because of it."""
    earlier: tuple[str, ...] = ()
    """Failures before it, which were made good."""
    notes: tuple[str, ...] = ()
    advice: str = ""
    next: tuple[str, ...] = ()
    """Commands to type."""


def explain(run: RunState, now: float) -> Explanation:
    cause = run.cause or next((stage.cause for stage in run.stages if stage.cause), None)
    if run.state == "succeeded" or cause is None:
        return Explanation(
            run.id,
            run.state,
            _nothing_wrong(run, now),
            earlier=_earlier(run, None),
            notes=_notes(run),
            next=next_commands(run),
        )
    hung = _hung(run, cause)
    return Explanation(
        run.id,
        run.state,
        headline(run) if run.cause else f"{run.id} is still {run.state}: {brief(cause)}",
        _where(run, cause),
        _when(run, cause),
        _facts(cause),
        (*(() if hung else cause.evidence), *_of_gate(run, cause)),
        hung,
        () if hung else cause.lines,
        _consequences(run, cause),
        _earlier(run, cause),
        _notes(run),
        _advice(run, cause),
        next_commands(run),
    )


def _nothing_wrong(run: RunState, now: float) -> str:
    if run.state == "succeeded":
        healed = sum(len(stage.failures) for stage in run.stages)
        after = (
            f", after {formatting.plural(healed, 'failure')} on the way" if healed else "; there is nothing to explain"
        )
        return f"{run.id} succeeded in {took(run, now)}{after}"
    if not run.over:
        return f"{run.id} is still {run.state}: {_doing(run, now)}"
    return f"{run.id} is {run.state}; its journal names no cause"


def headline(run: RunState) -> str:
    """The run's end in one line: `demo-babab failed: train/worker-1: the program failed: ValueError: ...`."""
    cause = run.cause
    if cause is None:
        return f"{run.id} {'is serving' if run.state == 'serving' else run.state.replace('_', ' ')}"
    if run.state == "stopped":
        return f"{run.id} was {cause.message or WORDS[cause.kind].phrase}"
    if run.state == "gate_missed":
        return f"{run.id} missed its gate {cause.stage}: {cause.message}"
    return f"{run.id} {'is lost' if run.state == 'lost' else run.state}: {brief(cause)}"


def brief(cause: Cause) -> str:
    """A cause in one line: where, in words, and the sentence or error that says more."""
    return f"{cause.where}: {said(cause)}" if cause.where else said(cause)


def said(cause: Cause) -> str:
    """The same without where."""
    told = WORDS[cause.kind]
    more = cause.message or cause.error
    if cause.kind is CauseKind.USER_ERROR:
        more = cause.error or more
        if not cause.error and cause.lines:
            more += f"; its last line: {_short(cause.lines[-1])}"
    if not more or more.startswith((*told.alone, told.phrase)):
        return more or told.phrase
    return f"{told.phrase}: {more}"


def _short(line: str) -> str:
    line = " ".join(line.split())
    return line if len(line) <= LINE_MOST else line[:LINE_MOST].rstrip() + " ..."


def took(run: RunState, now: float) -> str:
    return formatting.span((run.ended or now) - run.started) if run.started else "no time"


def next_commands(run: RunState) -> tuple[str, ...]:
    """The commands to type next, with this run's id in them."""
    templates = NEXT.get(run.state)
    if templates is None:
        templates = WORDS[run.cause.kind].next if run.cause else (STATUS, LOGS, RESUME)
    cause = run.cause
    rank = ""
    if cause is not None and cause.rank >= 0:
        stage = f" --stage {cause.stage}" if len(run.stages) > 1 else ""
        rank = f"{stage} --role {cause.role} --rank {cause.rank}"
    elif cause is not None and cause.stage and len(run.stages) > 1:
        rank = f" --stage {cause.stage}"
    file = shlex.quote(run.file or "job.yaml")
    found = tuple(template.format(run=run.id, rank=rank, file=file) for template in templates)
    served = next((stage.serving for stage in run.stages if stage.serving), None)
    if served and run.state == "serving" and run.engine == "kubernetes":
        return (f"longboat url {run.id}", *found)
    if served and run.state == "serving":
        return (f"longboat predict {served['url']}/v1/models/{served['model']}", *found)
    return (f"longboat serve {run.id}", *found) if served and run.state == "succeeded" else found


def _where(run: RunState, cause: Cause) -> str:
    stage = _stage(run, cause)
    parts = [cause.where, f"generation {cause.generation}" if cause.generation else ""]
    parts.append(f"attempt {stage.attempt}" if stage is not None and stage.attempt > 1 and cause.generation else "")
    return ", ".join(filter(None, parts))


def _when(run: RunState, cause: Cause) -> str:
    """When it fell, on the clock and since the run began, and how far the stage had come."""
    stage = _stage(run, cause)
    fell = next((f.t for f in stage.failures if _same(f, cause)), run.ended) if stage else run.ended or run.last
    if not fell or not run.started:
        return ""
    told = f"{formatting.day(fell)}, {formatting.span(fell - run.started)} after the run began"
    if run.state == "lost":
        told = f"after {formatting.day(fell)} (the journal's last event), "
        told += f"{formatting.span(fell - run.started)} after the run began"
    if stage is not None and stage.step is not None:
        told += f", at step {stage.step:g}" + (f" of {stage.total:g}" if stage.total else "")
    return told


def _stage(run: RunState, cause: Cause) -> StageState | None:
    if not cause.stage:
        return run.stage
    return next((stage for stage in run.stages if stage.name == cause.stage), None)


def _facts(cause: Cause) -> tuple[str, ...]:
    facts = [f"at {cause.frame}"] if cause.frame else []
    facts += [cause.error] if cause.error else []
    if cause.message and cause.message != cause.error and cause.message != f"exited with code {cause.exit_code}":
        facts.append(cause.message)
    if cause.exit_code >= 0:
        facts.append(f"exit code {cause.exit_code}")
    if cause.signal and signal_name(cause.signal) not in cause.message:
        facts.append(f"ended by {signal_name(cause.signal)}")
    return tuple(facts)


def _advice(run: RunState, cause: Cause) -> str:
    if cause.kind is CauseKind.KILLED and signal_name(cause.signal) in CRASHES:
        return CRASHED
    verdict = _verdict(run, cause)
    if verdict is not None and verdict.value is None:
        return UNREPORTED.format(metric=verdict.metric)
    return WORDS[cause.kind].advice


def _verdict(run: RunState, cause: Cause) -> Verdict | None:
    stage = _stage(run, cause) if cause.kind is CauseKind.GATE_NOT_MET else None
    return stage.verdict if stage else None


def _of_gate(run: RunState, cause: Cause) -> tuple[str, ...]:
    """Why there was nothing to compare."""
    verdict = _verdict(run, cause)
    if verdict is None or verdict.value is not None:
        return ()
    asked = next((stage for stage in run.stages if stage.name == verdict.of), None)
    names = ", ".join(sorted(asked.metrics)) if asked else ""
    return (f"{verdict.of} reported {names}",) if names else (f"{verdict.of} reported no metric at all",)


def _hung(run: RunState, cause: Cause) -> tuple[str, ...]:
    """What each rank was doing, ranks that did the same together; whoever fell silent first comes first."""
    stage = _stage(run, cause)
    if cause.kind is not CauseKind.STALLED or stage is None:
        return ()
    ranks = sorted((rank for rank in stage.ranks if rank.hung), key=lambda rank: rank.reported)
    groups: dict[tuple[str, ...], list[RankState]] = {}
    for rank in ranks:
        groups.setdefault(tuple(_PROCESS.sub("", line) for line in rank.hung), []).append(rank)
    found = []
    reports = [rank for rank in ranks if rank.reported]
    if reports and reports[-1].reported - reports[0].reported >= 0.1:
        first, last = reports[0], reports[-1]
        step = f" (step {first.step:g})" if first.step is not None else ""
        later = formatting.span(last.reported - first.reported)
        found.append(f"{first.name} fell silent first: its last report{step} came {later} before that of {last.name}")
    for lines, alike in groups.items():
        names = [rank.name for rank in sorted(alike, key=lambda rank: (rank.role, rank.rank))]
        some = names if len(names) <= SOME else [*names[:SOME], f"and {len(names) - SOME} more"]
        states = [line for line in lines if not line.startswith(" ")]
        found.append(f"{', '.join(some)}: {states[0] if len(states) == 1 else ''}".rstrip())
        found += [f"  {line}" for line in (lines[1:] if len(states) == 1 else lines)]
    return tuple(found)


_PROCESS = re.compile(r"^process \d+ is ")
SOME = 8
"""So many ranks that do the same are named."""


def _notes(run: RunState) -> tuple[str, ...]:
    return tuple(f"{formatting.clock(note.t)}  {note.text}" for note in run.notes if note.level == "warning")


def _consequences(run: RunState, cause: Cause) -> tuple[str, ...]:
    """The ranks that fell because the cause's rank did, in its stage; with a lost driver, all that ran.
    One that ended by itself, before it could be ended, is told with its exit code."""
    lost = run.state == "lost"
    return tuple(
        rank.name + (f" (exit code {rank.code})" if rank.code else "")
        for stage in run.stages
        if lost or stage.name == cause.stage
        for rank in stage.ranks
        if (rank.state == "lost" if lost else rank.because)
    )


def _earlier(run: RunState, last: Cause | None) -> tuple[str, ...]:
    """Failures that a restart or another attempt made good, or tried to."""
    found = [(failure, stage) for stage in run.stages for failure in stage.failures if not _same(failure, last)]
    return tuple(
        f"{formatting.clock(failure.t)}  {_told(failure, stage)}"
        for failure, stage in sorted(found, key=lambda pair: pair[0].t)
    )


def _told(failure: RankFailure, stage: StageState) -> str:
    gen = f" (generation {failure.cause.generation})" if failure.cause.generation else ""
    where = "" if failure.cause.where else f"{stage.name}: "
    return f"{where}{brief(failure.cause)}{gen}"


def _same(failure: RankFailure, last: Cause | None) -> bool:
    cause = failure.cause
    return last is not None and (cause.kind, cause.where, cause.generation) == (last.kind, last.where, last.generation)


def _doing(run: RunState, now: float) -> str:
    stage = run.stage
    if stage is None:
        return "nothing has begun yet"
    text = stage.name
    if stage.step is not None:
        text += f" at step {stage.step:g}" + (f" of {stage.total:g}" if stage.total else "")
    return f"{text}, for {took(run, now)}"
