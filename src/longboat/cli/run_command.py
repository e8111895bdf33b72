"""Runs a job: checks it, starts its gang, shows it until it has ended.

The last lines say what to type next. Ctrl-C asks the ranks to stop (SIGTERM), waits for the
grace period of the stage, then kills; a second Ctrl-C kills at once. With --detach the run goes
on by itself: `longboat attach` shows it again.

On a cluster (--on kubernetes) the run is driven from inside the cluster: Ctrl-C ends the watching
only, a closed laptop changes nothing, and attach, logs, why and stop work from any machine. While
the run is still being submitted, Ctrl-C takes back what was made of it.

Exit codes: 0 done, 1 the job failed, 2 wrong use, 3 the gate was not met, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from longboat.cli.console import Console
from longboat.cli.image_building import add_build_arguments
from longboat.cli.job_file import add_job_arguments
from longboat.cli.run_location import add_cluster_arguments, add_submit_arguments
from longboat.cli.stage_selection import add_part_arguments, fates_lines, new_plan, wish
from longboat.runtime.errors import FAILED, OK, LongboatError

if TYPE_CHECKING:
    from longboat.engines.local.opening import OpenedRun
    from longboat.runs.logs import LogSource


def arguments(parser: argparse.ArgumentParser) -> None:
    add_job_arguments(parser)
    add_cluster_arguments(parser)
    add_submit_arguments(parser)
    parser.add_argument("-d", "--detach", action="store_true", help="return at once and let the run go on by itself")
    parser.add_argument("-q", "--quiet", action="store_true", help="leave out what the ranks print")
    parser.add_argument("--json", action="store_true", help="all events of the run as JSON on stdout, one a line")
    parser.add_argument(
        "-k", "--keep", action="store_true", help="keep servers up when all else is done, until Ctrl-C or `stop`"
    )
    add_part_arguments(parser)
    parser.add_argument(
        "--build", action="store_true", help="build an image with code and packages, push it and run it: see `build`"
    )
    add_build_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    if args.on == "kubernetes" or args.resume is not None and _in_cluster(args.resume, console):
        from longboat.cli import cluster_run

        return cluster_run.main(args, console)
    from longboat.engines.local import opening

    if args.on != "local":
        raise LongboatError(f"there is no engine {args.on!r}", "leave out --on, or say --on kubernetes")
    if args.build:
        raise LongboatError("ranks on this machine need no image", "leave out --build, or say --on kubernetes")
    plan, part = new_plan(args, console), wish(args, keep=args.keep or args.detach)
    if args.resume is not None:
        run = opening.reopened(args.resume, console.home, console.environ, part, plan)
    else:
        assert plan is not None
        run = opening.opened(plan, console.home, console.environ, part)
    if not args.json:
        for line in fates_lines(run.fates):
            console.say(line)
    if args.detach:
        return _detached(run, console)
    viewer = _Viewer(run, args, console)
    code = run.drive(begun=viewer.open, say=console.say)
    viewer.wait()
    return code


def _in_cluster(run: str, console: Console) -> bool:
    from longboat.engines.resolve import Where

    return Where(console.home, console.environ).knows_copy(run)


def _detached(run: OpenedRun, console: Console) -> int:

    if not run.detach():
        console.say(f"error: {run.id} did not start\n\nhint: longboat why {run.id}")
        return FAILED
    console.print(run.id)
    commands = [f"longboat attach {run.id}", f"longboat logs -f {run.id}", f"longboat stop {run.id}"]
    console.say(f"{run.id} runs in the background")
    console.next(*commands)
    return OK


class _Viewer:
    """A process of its own that shows the run, so that drawing never holds the driver up."""

    def __init__(self, run: OpenedRun, args: argparse.Namespace, console: Console) -> None:
        self._run = run
        self._args = args
        self._world = console
        self._pid = 0
        self._logged = _logged(run) if run.events else None

    def open(self) -> None:
        self._world.out.flush()
        self._world.err.flush()
        import signal

        from longboat.runtime.agent import syscalls
        from longboat.runtime.driver.stop_signals import ENDING

        # Until the viewer has let go of the driver's signals: a Ctrl-C that both hear must not count twice.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        self._pid = syscalls.fork(lambda: self._show(mask))
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def wait(self) -> None:
        """Until all has been shown; a run that failed before it began is shown too."""
        if not self._pid:
            self.open()
        os.waitpid(self._pid, 0)

    def _show(self, mask: Iterable[int]) -> int:
        import signal

        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        close_inherited()  # the driver's end of every pipe must be the driver's alone
        from longboat.cli.display import Display

        display = Display(
            self._world,
            self._run.directory,
            json=self._args.json,
            quiet=self._args.quiet,
            after=self._run.events,
            resumed=self._run.events,
            logged=self._logged,
        )
        self._run.remember()
        display.follow()
        self._world.out.flush()
        return OK


def _logged(run: OpenedRun) -> dict[LogSource, int]:
    """What each log holds before the run goes on."""
    from pathlib import Path

    from longboat.runs.logs import sources

    return sources(Path(run.directory))


def close_inherited() -> None:
    """All files but the three streams. A container may allow a thousand million: those that are open are asked for."""
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        return
    for number in numbers:
        if number > 2:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(number)
