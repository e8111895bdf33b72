"""Programs that a command runs and waits for. They end with the command, even when it is killed.

They also hold every lock that the command holds, so whoever gets the lock next knows that they are gone.

The thread that starts a program has to wait for it: the kernel ends the program when that thread ends.
"""

import os
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Self, TypeVar

# No signal comes for a command that ended before it was asked for: the program has another parent then.
_UNLESS_ORPHANED = 'test "$PPID" = "$0" && exec "$@"'

_running: set["subprocess.Popen[str]"] = set()

T = TypeVar("T")


def run(
    *argv: str | Path, check: bool = True, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    command = ["setpriv", "--pdeathsig", "KILL", "sh", "-c", _UNLESS_ORPHANED, str(os.getpid()), *map(str, argv)]
    # Of the open files only those are passed on that were made to be: the locks.
    with subprocess.Popen(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, close_fds=False
    ) as process:
        _running.add(process)
        try:
            out, err = process.communicate()
        except BaseException:
            process.kill()
            raise
        finally:
            _running.discard(process)
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


class SideBySide:
    """Functions in threads of their own; leaving the block waits for all of them.

    When one fails, or the command is interrupted, the programs that the others run are killed and the block raises
    the first error.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(16)
        self._futures: list[Future[Any]] = []
        self._first_error: BaseException | None = None

    def start(self, function: Callable[..., T], *arguments: object) -> "Future[T]":
        future = self._pool.submit(self._guarded, function, *arguments)
        self._futures.append(future)
        return future

    def _guarded(self, function: Callable[..., T], *arguments: object) -> T:
        try:
            return function(*arguments)
        except BaseException as error:
            self._first_error = self._first_error or error
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        while True:
            try:
                if not wait(self._futures, timeout=0.1).not_done:
                    break
            except KeyboardInterrupt as interrupt:
                error = interrupt
            if error or self._first_error:
                for process in list(_running):  # again and again: a thread may start one more
                    process.kill()
        self._pool.shutdown()
        if error is None:
            error = self._first_error
        if error is not None:
            raise error
