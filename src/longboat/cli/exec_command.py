"""Runs a command beside a rank: in its directory, with its environment, seeing its processes.

    longboat exec RUN -- CMD [ARG ...]
    longboat exec --rank 1 RUN            (without a command: a shell)

RUN is a run's id, the beginning of one, or a job's name; without it, the newest run. The exit
code is the command's. A rank that has not started yet is waited for, ten seconds at most.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from longboat.cli import run_location
from longboat.cli.console import Console
from longboat.runs.journal_fold import load

if TYPE_CHECKING:
    from longboat.engines.kubernetes.replica import RunReplica

TAKES_COMMAND = True
PATIENCE = 10.0
"""Seconds that a rank has to start."""
PAUSE = (0.05, 0.5)
"""Seconds between two looks, here and in a cluster."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run (the newest if not given)")
    parser.add_argument("--stage", help="stage of the rank (the one that runs)")
    parser.add_argument("--role", help="role of the rank (the first that runs)")
    parser.add_argument("--rank", type=int, help="number of the rank (the first that runs)")
    run_location.add_place_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    from longboat.engines.local.rank_exec import execute, running

    run, copy = run_location.find(args, console, args.run)
    _await(run, copy, args)
    if copy is not None:
        from longboat.engines.kubernetes import rank_exec

        there = running(run, args.stage, args.role, args.rank)
        return rank_exec.execute(copy.cluster, copy.run, there, args.command, console.environ)
    seat = running(run, args.stage, args.role, args.rank)
    return execute(seat.pid, args.command or [console.environ.get("SHELL") or "/bin/sh"])


def _await(run: Path, copy: RunReplica | None, args: argparse.Namespace) -> None:
    """Until a rank that is meant runs, or none will, or for so long: a run has an id before its ranks start."""
    if copy is not None:
        copy.sync()
    due = time.monotonic() + PATIENCE
    while _coming(run, args) and time.monotonic() < due:
        time.sleep(PAUSE[copy is not None])
        if copy is not None:
            copy.sync()


def _coming(run: Path, args: argparse.Namespace) -> bool:
    """None that is meant runs yet, and one may still start."""
    state = load(run)
    meant = [
        rank.state
        for stage in state.stages
        for rank in stage.ranks
        if args.stage in (None, rank.stage) and args.role in (None, rank.role) and args.rank in (None, rank.rank)
    ]
    under_way = state.state in ("starting", "running") and "running" not in meant
    return under_way and any(each != "succeeded" for each in meant)
