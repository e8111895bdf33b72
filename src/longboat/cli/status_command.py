"""List runs, the newest first; or show one run, stage by stage and rank by rank.

Use it to see what runs and how far it is.

  longboat status
  longboat status mnist
  longboat status --on kubernetes --json

RUN is a run's id, the beginning of one, or a job's name. If a run has more than 50 ranks, ranks in the same state share
a row; --all shows every rank, or every run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from longboat.cli import engine_options, run_summary, table
from longboat.cli.console import Console, next_lines
from longboat.engines import registry
from longboat.runs import explanation, formatting
from longboat.runs.run_state import RankState, RunState, as_json
from longboat.runtime.causes import signal_name
from longboat.runtime.errors import OK

RUNS, RANKS = 20, 50


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run (default: all runs)")
    parser.add_argument(
        "--all", action="store_true", help=f"show all runs, not only the newest {RUNS}; show every rank"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    engine_options.add_place_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    now = time.time()
    if args.run is not None:
        run = engine_options.find(args, console, args.run)
        state = run.state()
        if args.json:
            console.print_json(run_json(run.directory, state))
        else:
            console.print(details(state, run.directory, now, args.all, console.columns))
        return OK
    engine = engine_options.engine_of(args, console)
    runs = engine.runs(0 if args.all or args.json else RUNS)
    states = list(runs.states)
    if args.json:
        console.print_json([_short(state) for state in states])
    elif not states:
        console.say(f"no runs {runs.where}")
        console.next("longboat run job.yaml" + (f" --on {engine.name}" if engine.name != registry.DEFAULT else ""))
    else:
        rows = [_row(state, now) for state in states]
        headers = ("RUN", "STATE", "STAGE", "PROGRESS", "AGE", "TOOK", "CAUSE")
        console.print(table.render(*_without_unknown(headers, rows), columns=console.columns))
        if len(states) < runs.total:
            console.say(f"{runs.total - len(states)} older runs are not shown: longboat status --all")
        console.next(f"longboat status {states[0].id}", *_why_command(states))
    return OK


def _without_unknown(
    headers: Sequence[str], rows: list[tuple[str, ...]]
) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """The table without empty columns: a cluster's list of runs has less than a journal."""
    kept = [
        i for i in range(len(headers)) if i < 2 or headers[i] == "AGE" or any(row[i] not in ("", "-") for row in rows)
    ]
    return [headers[i] for i in kept], [tuple(row[i] for i in kept) for row in rows]


def run_json(run: Path, state: RunState) -> dict[str, object]:
    """A run as a JSON document."""
    return {"dir": str(run), **as_json(state)}


def _why_command(states: list[RunState]) -> list[str]:
    """The `why` command for the newest run that did not succeed."""
    wrong = [f"longboat why {state.id}" for state in states if state.over and state.state != "succeeded"]
    return wrong[:1]


def _short(state: RunState) -> dict[str, object]:
    names = ("id", "name", "state", "started", "ended", "code", "cause")
    return {
        **{name: as_json(getattr(state, name)) for name in names},
        "stage": state.stage.name if state.stage else None,
    }


def _row(run: RunState, now: float) -> tuple[str, ...]:
    stage = run.stage
    age = formatting.span(now - run.started) if run.started else "-"
    took = explanation.took(run, now) if run.started and run.events else "-"
    cause = table.shorten(explanation.brief(run.cause), 70) if run.cause else ""
    return (
        run.id,
        run.state,
        stage.name if stage else "-",
        (run_summary.progress(stage) if stage else "") or "-",
        age,
        took,
        cause,
    )


def details(run: RunState, run_dir: Path, now: float, every: bool, columns: int = 0) -> str:
    head = [("run", run.id), ("state", run.state + (f" (exit code {run.code})" if run.code is not None else ""))]
    if run.started:
        head.append(("started", f"{formatting.day(run.started)}, {formatting.span(now - run.started)} ago"))
        head.append(("took" if run.over else "running for", explanation.took(run, now)))
    if run.pid and not run.over:
        head.append(("driver", f"pid {run.pid} on {run.host}"))
    if run.resumes:
        head.append(("resumed", formatting.plural(run.resumes, "time")))
    if run.cause is not None:
        head.append(("cause", explanation.brief(run.cause)))
    head.append(("directory", str(run_dir)))
    head += [("output", str(path)) for path in run_summary.outputs(run, run_dir)]
    parts = [table.render((), head), _stages(run, now)]
    ranks = [rank for stage in run.stages for rank in stage.ranks]
    if ranks:
        parts.append(_ranks(ranks, every or len(ranks) <= RANKS, columns))
    serving = [line for stage in run.stages if stage.state == "serving" for line in run_summary.serving(stage.serving)]
    verdicts = [f"{stage.name} {run_summary.verdict(stage.verdict)}" for stage in run.stages if stage.verdict]
    notes = [f"{formatting.clock(note.t)} {note.level}: {note.text}" for note in run.notes]
    parts += ["\n".join(lines) for lines in (serving, verdicts, notes) if lines]
    commands = list(explanation.next_commands(run))
    if run.over and run.state != "succeeded":
        commands.insert(0, f"longboat why {run.id}")
    return "\n\n".join(part for part in parts if part) + "\n" + "\n".join(next_lines(commands))


def _stages(run: RunState, now: float) -> str:
    rows = []
    for stage in run.stages:
        took = formatting.span((stage.ended or now) - stage.started) if stage.started else "-"
        figures = (str(stage.attempt or "-"), str(stage.generation or "-"), run_summary.progress(stage) or "-")
        kind = stage.shape if stage.kind == "gang" else stage.kind
        rows.append((stage.name, kind, stage.state, *figures, run_summary.metrics(stage.metrics) or "-", took))
    return (
        table.render(("STAGE", "SHAPE", "STATE", "ATTEMPT", "GEN", "PROGRESS", "METRICS", "TOOK"), rows) if rows else ""
    )


def _ranks(ranks: list[RankState], every: bool, columns: int) -> str:
    groups: dict[tuple[str, ...], list[RankState]] = {}
    for rank in ranks:
        alike = (rank.stage, rank.role, str(rank.rank) if every else "", *_row_key(rank))
        groups.setdefault(alike, []).append(rank)
    rows = []
    for (stage, role, _, state, gen, restarts, ended, cause), alike_ranks in groups.items():
        first = alike_ranks[0]
        single = len(alike_ranks) == 1
        name = (
            f"{stage}/{first.name}"
            if single
            else f"{stage}/{role}-{_ranges(r.rank for r in alike_ranks)} ({len(alike_ranks)})"
        )
        steps = sorted({rank.step for rank in alike_ranks if rank.step is not None})
        progress = run_summary.progress(first) if single or len(steps) < 2 else f"{steps[0]:g}..{steps[-1]:g}"
        pid = str(first.pid) if single and first.pid else "-"
        rows.append((name, state, gen, restarts, pid, progress or "-", ended, cause))
    headers = ("RANK", "STATE", "GEN", "RESTARTS", "PID", "PROGRESS", "EXIT", "CAUSE")
    return table.render(headers, rows, columns=columns)


def _row_key(rank: RankState) -> tuple[str, str, str, str, str]:
    """The columns in which ranks of one row are equal."""
    ended = signal_name(rank.signal) if rank.signal else "-" if rank.code is None else str(rank.code)
    cause = f"because {rank.because} failed" if rank.because else ""
    if rank.cause is not None and not rank.because:
        cause = table.shorten(explanation.cause_text(rank.cause), 70)
    return rank.state, str(rank.gen or "-"), str(rank.restarts), ended, cause


def _ranges(numbers: Iterable[int]) -> str:
    """0,1,2,5 as `0..2,5`."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    texts = [f"{a}" if a == b else f"{a}..{b}" for a, b in spans]
    return ",".join(texts if len(texts) < 7 else [*texts[:6], "…"])
