"""Run a command beside a rank: in its directory, with its environment, next to its processes.

Use it to look at a running rank with py-spy, nvidia-smi or a shell. Without a command it starts a shell.

    longboat exec RUN -- CMD [ARG ...]
    longboat exec --rank 1 RUN            (a shell)

RUN is a run's id, the beginning of one, or a job's name; without it, the newest run. The exit code is the command's.
If the rank has not started yet, exec waits up to ten seconds.
"""

from __future__ import annotations

import argparse
import time

from longboat.cli import engine_options
from longboat.cli.console import Console
from longboat.engines.interface import CanExec, RunHandle, able
from longboat.runs import explanation
from longboat.runs.run_state import RankState, RunState
from longboat.runtime.errors import LongboatError

TAKES_COMMAND = True
PATIENCE = 10.0
"""Seconds to wait for a rank to start."""
PAUSE = (0.05, 0.5)
"""Seconds between two checks, for a local run and for one in a cluster."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run (the newest if not given)")
    parser.add_argument("--stage", help="stage of the rank (the running one)")
    parser.add_argument("--role", help="role of the rank (the first running one)")
    parser.add_argument("--rank", type=int, help="number of the rank (the first running one)")
    engine_options.add_place_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    run = engine_options.find(args, console, args.run)
    executor = able(run, CanExec, "exec")
    return executor.exec(_running(run, args), args.command, console.environ)


def _running(run: RunHandle, args: argparse.Namespace) -> RankState:
    """The first running rank that matches the options; waits for one that has not started yet."""
    due = time.monotonic() + PATIENCE
    state = run.state()
    while _coming(state, args) and time.monotonic() < due:
        time.sleep(PAUSE[run.outlives_cli])
        state = run.state()
    ranks = [rank for stage in state.stages for rank in stage.ranks if rank.state == "running"]
    for rank in ranks:
        if _fits(rank, args):
            return rank
    if not ranks:
        raise LongboatError(
            f"no rank of {run.id} is running: {explanation.state_text(state.state)}", f"longboat status {run.id}"
        )
    names = ", ".join(f"{rank.stage}/{rank.name}" for rank in ranks[:8])
    raise LongboatError("no such rank is running", f"running: {names}")


def _fits(rank: RankState, args: argparse.Namespace) -> bool:
    return args.stage in (None, rank.stage) and args.role in (None, rank.role) and args.rank in (None, rank.rank)


def _coming(state: RunState, args: argparse.Namespace) -> bool:
    """No matching rank runs yet, but one may still start: a run has an id before its ranks start."""
    fitting = [rank.state for stage in state.stages for rank in stage.ranks if _fits(rank, args)]
    under_way = state.state in ("starting", "running") and "running" not in fitting
    return under_way and any(each != "succeeded" for each in fitting)
