"""From the state of a run to an explanation that a person can act on.

One table says how each kind of cause is put into words and which commands help. The facts
come from the journal alone: what is not known is not said.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass

from windlass.causes import Cause, Kind
from windlass.runs import words
from windlass.runs.values import Failure, RunState, StageState

LOGS, RESUME, AGAIN, STATUS, DOCTOR, ATTACH, STOP, PLAN, LS = (
    "windlass logs {run}{rank} --tail 50",
    "windlass run --resume {run}",
    "windlass run {file}",
    "windlass status {run}",
    "windlass doctor",
    "windlass attach {run}",
    "windlass stop {run}",
    "windlass plan {file}",
    "windlass ls {run}",
)


@dataclass(frozen=True)
class Words:
    """How a kind of cause is told: the phrase for the headline, advice, the next commands."""

    phrase: str
    advice: str = ""
    next: tuple[str, ...] = (LOGS, RESUME)


WORDS: Mapping[Kind, Words] = {
    Kind.USER_ERROR: Words("the program failed", "mend the program, then continue the run"),
    Kind.NOT_FOUND: Words(
        "the command was not found", "check `run:` in the job file and what is installed", (PLAN, AGAIN)
    ),
    Kind.NOT_EXECUTABLE: Words(
        "the command may not be executed", "give the file its run bit (chmod +x), or name its interpreter", (AGAIN,)
    ),
    Kind.OUT_OF_MEMORY: Words(
        "out of memory",
        "smaller batches, fewer ranks on this machine, or more `resources: {memory: ...}`",
        (LOGS, RESUME),
    ),
    Kind.KILLED: Words("killed by a signal", "something outside of Windlass may have sent it", (LOGS, RESUME)),
    Kind.PREEMPTED: Words("preempted", "", (RESUME,)),
    Kind.NODE_LOST: Words("the node was lost", "", (RESUME, DOCTOR)),
    Kind.AGENT_LOST: Words("the agent beside the rank was lost", "", (LOGS, RESUME)),
    Kind.SUPERVISOR_LOST: Words(
        "the driver was lost", "it was killed or the machine went down; its processes ended with it", (RESUME, LOGS)
    ),
    Kind.STALLED: Words(
        "no progress: stalled", "see where each rank hung; `stall_after:` sets the patience", (LOGS, RESUME)
    ),
    Kind.TIMED_OUT: Words("timed out", "raise `timeout:` of the stage, or make it faster", (LOGS, RESUME)),
    Kind.LOST_RENDEZVOUS: Words("the ranks did not find each other", "", (LOGS, DOCTOR, RESUME)),
    Kind.MPI_MISMATCH: Words(
        "mpirun and the program's MPI library do not belong together", "use one MPI for both", (LOGS, DOCTOR)
    ),
    Kind.DISK_FULL: Words(
        "the disk is full",
        "free space, or set WINDLASS_HOME to a larger disk",
        ("windlass prune --older-than 7d", RESUME),
    ),
    Kind.NOT_WRITABLE: Words("a directory is not writable", "", (PLAN, RESUME)),
    Kind.MISSING_INPUT: Words("an input is missing", "", (PLAN, AGAIN)),
    Kind.GATE_NOT_MET: Words(
        "the gate was not met", "train longer or differently, or lower the gate", (STATUS, RESUME)
    ),
    Kind.STOPPED: Words("stopped by the user", "", (RESUME,)),
    Kind.INTERNAL: Words("Windlass itself failed", "this is a bug of Windlass", (LOGS, DOCTOR)),
}

NEXT: Mapping[str, tuple[str, ...]] = {
    "starting": (ATTACH, STOP),
    "running": (ATTACH, "windlass logs -f {run}", STOP),
    "stopping": (ATTACH,),
    "succeeded": (LS, "windlass logs {run}"),
    "stopped": (RESUME, "windlass logs {run}"),
}


@dataclass(frozen=True)
class Explanation:
    run: str
    state: str
    headline: str
    where: str = ""
    facts: tuple[str, ...] = ()
    """Exit, signal, frame, error: one sentence each."""
    lines: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    consequences: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()
    advice: str = ""
    next: tuple[str, ...] = ()


def explain(run: RunState, now: float) -> Explanation:
    if run.state == "succeeded":
        return Explanation(
            run.id,
            run.state,
            f"{run.id} succeeded in {took(run, now)}; there is nothing to explain",
            earlier=_earlier(run, None),
            next=next_commands(run),
        )
    cause = run.cause or next((stage.cause for stage in run.stages if stage.cause), None)
    if not run.over and cause is None:
        return Explanation(
            run.id,
            run.state,
            f"{run.id} is still {run.state}: {_doing(run, now)}",
            earlier=_earlier(run, None),
            next=next_commands(run),
        )
    if cause is None:
        return Explanation(
            run.id, run.state, f"{run.id} is {run.state}; its journal names no cause", next=next_commands(run)
        )
    told = WORDS[cause.kind]
    return Explanation(
        run.id,
        run.state,
        headline(run),
        _where(cause),
        _facts(cause),
        cause.lines,
        cause.evidence,
        _consequences(run, cause),
        _earlier(run, cause),
        told.advice,
        next_commands(run),
    )


def headline(run: RunState) -> str:
    """The run's end in one line: `demo-babab failed: train/worker-1: the program failed: ValueError: ...`."""
    cause = run.cause
    if cause is None:
        return f"{run.id} {run.state.replace('_', ' ')}"
    return f"{run.id} {SAID.get(run.state, run.state)}: {brief(cause)}"


SAID: Mapping[str, str] = {"gate_missed": "missed its gate", "lost": "is lost", "stopped": "was stopped"}


def brief(cause: Cause) -> str:
    """A cause in one line: where, in words, and the sentence or error that says more."""
    phrase = WORDS[cause.kind].phrase
    more = cause.error or cause.message
    said = (more or phrase) if not more or more.lower().startswith(phrase) else f"{phrase}: {more}"
    return f"{cause.where}: {said}" if cause.where else said


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def took(run: RunState, now: float) -> str:
    return words.span((run.ended or now) - run.started) if run.started else "no time"


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
    return tuple(template.format(run=run.id, rank=rank, file=run.file or "job.yaml") for template in templates)


def _where(cause: Cause) -> str:
    return f"{cause.where}, generation {cause.generation}" if cause.generation else cause.where


def _facts(cause: Cause) -> tuple[str, ...]:
    facts = [cause.message] if cause.message else []
    if cause.exit_code >= 0:
        facts.append(f"exit code {cause.exit_code}")
    if cause.signal:
        facts.append(f"ended by {signal_name(cause.signal)}")
    if cause.frame:
        facts.append(f"at {cause.frame}")
    if cause.error:
        facts.append(cause.error)
    return tuple(dict.fromkeys(facts))


def _consequences(run: RunState, cause: Cause) -> tuple[str, ...]:
    """The ranks that fell because the cause's rank did, in its stage."""
    return tuple(
        rank.name
        for stage in run.stages
        if stage.name == cause.stage
        for rank in stage.ranks
        if rank.because or (run.state == "lost" and rank.state == "lost")
    )


def _earlier(run: RunState, last: Cause | None) -> tuple[str, ...]:
    """Failures that a restart or another attempt made good, or tried to."""
    found = [(failure, stage) for stage in run.stages for failure in stage.failures if not _same(failure, last)]
    return tuple(
        f"{words.clock(failure.t)}  {_told(failure, stage)}"
        for failure, stage in sorted(found, key=lambda pair: pair[0].t)
    )


def _told(failure: Failure, stage: StageState) -> str:
    gen = f" (generation {failure.cause.generation})" if failure.cause.generation else ""
    where = "" if failure.cause.where else f"{stage.name}: "
    return f"{where}{brief(failure.cause)}{gen}"


def _same(failure: Failure, last: Cause | None) -> bool:
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
