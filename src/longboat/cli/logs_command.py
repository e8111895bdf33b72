"""Prints what the ranks of a run wrote: all of it, rank by rank, each line behind its rank's name.

RUN is a run's id, the beginning of one, or a job's name; without it, the newest run.

With -f it follows: it waits for ranks that do not run yet, covers all of them through
restarts and new stages, and ends when the run ends. Ctrl-C ends the viewing only (exit 130).

--since cannot look into a log, because lines carry no time. It begins at the start of the
process that was running at that moment, else at the rank's next start: some lines may be
older, none that is newer is left out.

A line that was redrawn with carriage returns (a progress bar) is shown in its last state;
--raw prints the bytes exactly as they were written, without names.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterable
from pathlib import Path

from longboat.cli import engine_options, log_format
from longboat.cli.console import Console
from longboat.runs import formatting, logs
from longboat.runs.logs import LogFilter, LogFollower, LogPiece
from longboat.runs.watch import RunWatch
from longboat.runtime import journal
from longboat.runtime.errors import INTERRUPTED, OK, LongboatError
from longboat.runtime.plan import Plan
from longboat.runtime.shapes import MERGE_ROLE


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run (the newest if not given)")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    parser.add_argument("--stage", action="append", default=[], metavar="NAME", help="only this stage; may be repeated")
    parser.add_argument("--role", action="append", default=[], metavar="NAME", help="only this role; may be repeated")
    parser.add_argument(
        "--rank", action="append", default=[], type=int, metavar="N", help="only this rank; may be repeated"
    )
    parser.add_argument("--tail", type=int, metavar="N", help="begin with the last N lines of each rank")
    parser.add_argument("--since", metavar="TIME", help="begin at 5m, 2h, 1d ago, or at 2026-11-15T14:30")
    parser.add_argument("--grep", metavar="REGEX", help="only lines in which the regular expression is found")
    parser.add_argument("--raw", action="store_true", help="the bytes exactly as written, without names")
    engine_options.add_place_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    if args.tail is not None and args.tail < 0:
        raise LongboatError(f"--tail {args.tail}: a number of lines is 0 or more")
    if args.raw and args.grep is not None:
        raise LongboatError("--raw prints all bytes and --grep chooses lines", "leave one of them out")
    handle = engine_options.find(args, console, args.run)
    if args.follow:
        watch = handle.follow(logs=True, say=console.say)
    else:
        handle.sync(logs=True)
        watch = RunWatch(handle.directory)
    run = watch.run
    watch.poll()
    choice = _choice(args, watch.plan)
    pattern = _pattern(args.grep)
    since = None
    if args.since is not None:
        since = logs.since_offsets(journal.read(str(run)), formatting.moment(args.since, time.time()))
    begin = logs.beginning(args.tail, since)
    stages = [stage.name for stage in watch.plan.stages] if watch.plan else []
    try:
        if args.raw:
            return _raw(run, choice, stages, begin, watch if args.follow else None, console)
        follower = LogFollower(run, choice, stages)
        follower.begin(begin)
        pieces = logs.follow(follower, lambda: _over(watch)) if args.follow else follower.poll(last=True)
        if not _print(pieces, pattern, len(stages) == 1, console) and not args.follow:
            console.say(
                "no lines"
                if pattern or any(logs.sources(run).values())
                else "nothing was written"
                if watch.over
                else f"nothing was written yet; to wait for it: longboat logs -f {run.name}"
            )
    except KeyboardInterrupt:
        return INTERRUPTED
    return OK


def _over(watch: RunWatch) -> bool:
    watch.poll()
    return watch.over


def _print(pieces: Iterable[LogPiece], pattern: re.Pattern[str] | None, one_stage: bool, console: Console) -> bool:
    prefix = log_format.prefixer(one_stage, console.out.isatty() and not console.environ.get("NO_COLOR"))
    any_line = False
    for piece in pieces:
        found = log_format.matching(piece, pattern) if pattern else piece
        if found is not None:
            any_line = True
            data = log_format.prefixed(found, prefix(found.source))
            log_format.write(console.out, log_format.tame(data).encode() if console.out.isatty() else data)
    return any_line


def _raw(
    run: Path, choice: LogFilter, stages: list[str], begin: logs.Begin, watch: RunWatch | None, console: Console
) -> int:
    places = {source: begin(source, logs.path_of(run, source)) for source in logs.sources(run, stages)}
    while True:
        over = watch is None or _over(watch)
        for source, size in logs.sources(run, stages).items():
            if not choice.takes(source):
                continue
            place = places.get(source, 0)
            place = size if place is None else place
            for data in logs.raw(run, source, place):
                place += len(data)
                log_format.write(console.out, data)
            places[source] = place
        if over:
            return OK
        time.sleep(0.1)


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(text) if text is not None else None
    except re.error as error:
        raise LongboatError(
            f"--grep {text!r} is not a regular expression: {error}", "put a backslash before . * + ? [ ( { |"
        ) from None


def _choice(args: argparse.Namespace, plan: Plan | None) -> LogFilter:
    """What --stage, --role and --rank ask for; a name that the plan does not have is an error, not silence."""
    if plan is not None:
        stages = [stage for stage in plan.stages if not args.stage or stage.name in args.stage]
        roles = [role.name for stage in stages for role in stage.roles] + [
            MERGE_ROLE for stage in stages if stage.merge
        ]
        _check("stage", args.stage, [stage.name for stage in plan.stages])
        _check("role", args.role, roles)
        most = max(
            (role.ranks for stage in stages for role in stage.roles if not args.role or role.name in args.role),
            default=1,
        )
        for rank in args.rank:
            if not 0 <= rank < most:
                raise LongboatError(f"there is no rank {rank}", f"ranks here go from 0 to {most - 1}")
    return LogFilter(tuple(args.stage), tuple(args.role), tuple(args.rank))


def _check(what: str, asked: list[str], known: list[str]) -> None:
    for name in asked:
        if name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, n=1)
            listed = ", ".join(dict.fromkeys(known)) or "none"
            raise LongboatError(
                f"the run has no {what} {name!r}", f"did you mean {near[0]}?" if near else f"it has: {listed}"
            )
