"""Print what the ranks of a run wrote, each line after its rank's name.

Use it to read the output of a run, or to follow it. With -f it waits for ranks that have not started, continues through
restarts and new stages, and exits when the run ends. Ctrl-C stops following, not the run (exit 130).

  longboat logs -f                          the newest run
  longboat logs mnist --rank 1 --tail 50
  longboat logs mnist --grep 'loss=nan'

RUN is a run's id, the beginning of one, or a job's name; without it, the newest run.

Lines have no timestamps, so --since starts at the beginning of the process that ran at that time, or at the rank's
next start: some lines may be older than TIME, but no newer line is missing.

A line that was redrawn with carriage returns (a progress bar) is shown in its last state; --raw prints the bytes
exactly as they were written, without names.
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
    parser.add_argument("-f", "--follow", action="store_true", help="follow until the run ends")
    parser.add_argument("--stage", action="append", default=[], metavar="NAME", help="only this stage; may be repeated")
    parser.add_argument("--role", action="append", default=[], metavar="NAME", help="only this role; may be repeated")
    parser.add_argument(
        "--rank", action="append", default=[], type=int, metavar="N", help="only this rank; may be repeated"
    )
    parser.add_argument("--tail", type=int, metavar="N", help="start with the last N lines of each rank")
    parser.add_argument("--since", metavar="TIME", help="start 5m, 2h or 1d ago, or at 2026-11-15T14:30")
    parser.add_argument("--grep", metavar="REGEX", help="only lines that match the regular expression")
    parser.add_argument("--raw", action="store_true", help="print the bytes exactly as written, without names")
    engine_options.add_place_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    if args.tail is not None and args.tail < 0:
        raise LongboatError(f"--tail {args.tail}: must be 0 or more")
    if args.raw and args.grep is not None:
        raise LongboatError("--raw and --grep exclude each other", "use one of them")
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
        shown = log_format.matching(piece, pattern) if pattern else piece
        if shown is not None:
            any_line = True
            data = log_format.prefixed(shown, prefix(shown.source))
            log_format.write(console.out, log_format.tame(data).encode() if console.out.isatty() else data)
    return any_line


def _raw(
    run: Path, choice: LogFilter, stages: list[str], begin: logs.Begin, watch: RunWatch | None, console: Console
) -> int:
    offsets = {source: begin(source, logs.path_of(run, source)) for source in logs.sources(run, stages)}
    while True:
        over = watch is None or _over(watch)
        for source, size in logs.sources(run, stages).items():
            if not choice.takes(source):
                continue
            offset = offsets.get(source, 0)
            offset = size if offset is None else offset
            for data in logs.raw(run, source, offset):
                offset += len(data)
                log_format.write(console.out, data)
            offsets[source] = offset
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
    """The filter of --stage, --role and --rank; a name that the plan does not have is an error."""
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


def _check(what: str, names: list[str], known: list[str]) -> None:
    for name in names:
        if name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, n=1)
            listed = ", ".join(dict.fromkeys(known)) or "none"
            raise LongboatError(
                f"the run has no {what} {name!r}", f"did you mean {near[0]}?" if near else f"it has: {listed}"
            )
