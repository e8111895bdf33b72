"""Explains why a run is in its state, for `why` and the headline of `status`.

All facts come from the journal. The texts of each kind of cause are in `cause_texts`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from urllib.parse import urlsplit

from longboat.runs import formatting
from longboat.runs.cause_texts import CRASHED, CRASHES, LOGS, RESUME, STATUS, UNREPORTED, WORDS
from longboat.runs.run_state import RankFailure, RankState, RunState, StageState, Verdict
from longboat.runtime import journal
from longboat.runtime.causes import Cause, CauseKind, signal_name
from longboat.runtime.light_dataclasses import dataclass

LOOPBACK = ("127.0.0.1", "localhost", "::1")

ATTACH, STOP, LS = "longboat attach {run}", "longboat stop {run}", "longboat ls {run}"
LINE_MOST = 100
"""Maximum length of a rank's last line in a headline."""

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
    """The run, its state and the cause, in one line."""
    where: str = ""
    when: str = ""
    facts: tuple[str, ...] = ()
    """Frame, error, exit code and signal, one sentence each."""
    evidence: tuple[str, ...] = ()
    hung: tuple[str, ...] = ()
    """What each hung rank was doing."""
    lines: tuple[str, ...] = ()
    """The rank's last lines of output."""
    consequences: tuple[str, ...] = ()
    """Ranks that ended because of it."""
    earlier: tuple[str, ...] = ()
    """Earlier failures that the run recovered from."""
    notes: tuple[str, ...] = ()
    advice: str = ""
    next: tuple[str, ...] = ()
    """Commands to run next."""


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
        after = f", after {formatting.plural(healed, 'failure')}" if healed else "; there is nothing to explain"
        return f"{run.id} succeeded in {took(run, now)}{after}"
    if not run.over:
        return f"{run.id} is still {run.state}: {_doing(run, now)}"
    return f"{run.id} is {run.state}; its journal names no cause"


def headline(run: RunState) -> str:
    """The run's outcome in one line: `demo-babab failed: train/worker-1: the program failed: ValueError: ...`."""
    cause = run.cause
    if cause is None:
        return f"{run.id} {'is serving' if run.state == 'serving' else run.state.replace('_', ' ')}"
    if run.state == "stopped":
        return f"{run.id} was {cause.message or WORDS[cause.kind].phrase}"
    if run.state == "gate_missed":
        return f"{run.id} missed its gate {cause.stage}: {cause.message}"
    return f"{run.id} {'is lost' if run.state == 'lost' else run.state}: {brief(cause)}"


def state_text(state: str) -> str:
    """A run's state as the end of a sentence: `it succeeded`, `it is running`."""
    return f"it {journal.state_text(state)}"


def brief(cause: Cause) -> str:
    """A cause in one line: rank, phrase, and message or error."""
    return f"{cause.where}: {cause_text(cause)}" if cause.where else cause_text(cause)


def cause_text(cause: Cause) -> str:
    """A cause in one line, without the rank."""
    texts = WORDS[cause.kind]
    more = cause.message or cause.error
    if cause.kind is CauseKind.USER_ERROR:
        more = cause.error or more
        if not cause.error and cause.lines:
            more += f"; its last line: {_short(cause.lines[-1])}"
    if more and not texts.self_contained:
        return f"{texts.phrase}: {more}"
    return more or texts.phrase


def _short(line: str) -> str:
    line = " ".join(line.split())
    return line if len(line) <= LINE_MOST else line[:LINE_MOST].rstrip() + " ..."


def took(run: RunState, now: float) -> str:
    return formatting.span((run.ended or now) - run.started) if run.started else "no time"


def next_commands(run: RunState) -> tuple[str, ...]:
    """Commands to run next, with this run's ID."""
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
    commands = tuple(template.format(run=run.id, rank=rank, file=file) for template in templates)
    served = next((stage.serving for stage in run.stages if stage.serving), None)
    if served and run.state == "serving":
        if urlsplit(served["url"]).hostname not in LOOPBACK:  # not an address of this machine
            return (f"longboat url {run.id}", *commands)
        return (f"longboat predict {served['url']}/v1/models/{served['model']}", *commands)
    return (f"longboat serve {run.id}", *commands) if served and run.state == "succeeded" else commands


def _where(run: RunState, cause: Cause) -> str:
    stage = _stage(run, cause)
    parts = [cause.where, f"generation {cause.generation}" if cause.generation else ""]
    parts.append(f"attempt {stage.attempt}" if stage is not None and stage.attempt > 1 and cause.generation else "")
    return ", ".join(filter(None, parts))


def _when(run: RunState, cause: Cause) -> str:
    """When it failed: time, time since the run started, and the stage's step."""
    stage = _stage(run, cause)
    failed = next((f.t for f in stage.failures if _same(f, cause)), run.ended) if stage else run.ended or run.last
    if not failed or not run.started:
        return ""
    text = f"{formatting.day(failed)}, {formatting.span(failed - run.started)} after the run started"
    if run.state == "lost":
        text = f"after {formatting.day(failed)} (the journal's last event), "
        text += f"{formatting.span(failed - run.started)} after the run started"
    if stage is not None and stage.step is not None:
        text += f", at step {stage.step:g}" + (f" of {stage.total:g}" if stage.total else "")
    return text


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
    """Which metrics the stage did report, if the gate's metric is missing."""
    verdict = _verdict(run, cause)
    if verdict is None or verdict.value is not None:
        return ()
    stage = next((candidate for candidate in run.stages if candidate.name == verdict.of), None)
    names = ", ".join(sorted(stage.metrics)) if stage else ""
    return (f"{verdict.of} reported {names}",) if names else (f"{verdict.of} reported no metrics",)


def _hung(run: RunState, cause: Cause) -> tuple[str, ...]:
    """What each hung rank was doing, grouped; the rank that stopped reporting first comes first."""
    stage = _stage(run, cause)
    if cause.kind is not CauseKind.STALLED or stage is None:
        return ()
    ranks = sorted((rank for rank in stage.ranks if rank.hung), key=lambda rank: rank.reported)
    groups: dict[tuple[str, ...], list[RankState]] = {}
    for rank in ranks:
        groups.setdefault(tuple(_PROCESS.sub("", text) for text in rank.hung), []).append(rank)
    lines = []
    reports = [rank for rank in ranks if rank.reported]
    if reports and reports[-1].reported - reports[0].reported >= 0.1:
        first, last = reports[0], reports[-1]
        step = f" (step {first.step:g})" if first.step is not None else ""
        later = formatting.span(last.reported - first.reported)
        lines.append(
            f"{first.name} stopped reporting first: its last report{step} came {later} before that of {last.name}"
        )
    for state_lines, alike in groups.items():
        names = [rank.name for rank in sorted(alike, key=lambda rank: (rank.role, rank.rank))]
        some = names if len(names) <= SOME else [*names[:SOME], f"and {len(names) - SOME} more"]
        states = [text for text in state_lines if not text.startswith(" ")]
        lines.append(f"{', '.join(some)}: {states[0] if len(states) == 1 else ''}".rstrip())
        lines += [f"  {text}" for text in (state_lines[1:] if len(states) == 1 else state_lines)]
    return tuple(lines)


_PROCESS = re.compile(r"^process \d+ is ")
SOME = 8
"""Maximum number of ranks named in a group."""


def _notes(run: RunState) -> tuple[str, ...]:
    return tuple(f"{formatting.clock(note.t)}  {note.text}" for note in run.notes if note.level == "warning")


def _consequences(run: RunState, cause: Cause) -> tuple[str, ...]:
    """Ranks of the stage that ended because of the cause; after a lost driver, all ranks that ran.

    A rank that exited before it was stopped is shown with its exit code."""
    lost = run.state == "lost"
    return tuple(
        rank.name + (f" (exit code {rank.code})" if rank.code else "")
        for stage in run.stages
        if lost or stage.name == cause.stage
        for rank in stage.ranks
        if (rank.state == "lost" if lost else rank.because)
    )


def _earlier(run: RunState, last: Cause | None) -> tuple[str, ...]:
    """Failures before `last`, after which the gang restarted or the stage was retried."""
    failures = [(failure, stage) for stage in run.stages for failure in stage.failures if not _same(failure, last)]
    return tuple(
        f"{formatting.clock(failure.t)}  {_failure_text(failure, stage)}"
        for failure, stage in sorted(failures, key=lambda pair: pair[0].t)
    )


def _failure_text(failure: RankFailure, stage: StageState) -> str:
    gen = f" (generation {failure.cause.generation})" if failure.cause.generation else ""
    where = "" if failure.cause.where else f"{stage.name}: "
    return f"{where}{brief(failure.cause)}{gen}"


def _same(failure: RankFailure, last: Cause | None) -> bool:
    cause = failure.cause
    return last is not None and (cause.kind, cause.where, cause.generation) == (last.kind, last.where, last.generation)


def _doing(run: RunState, now: float) -> str:
    stage = run.stage
    if stage is None:
        return "nothing has started yet"
    text = stage.name
    if stage.step is not None:
        text += f" at step {stage.step:g}" + (f" of {stage.total:g}" if stage.total else "")
    return f"{text}, for {took(run, now)}"
