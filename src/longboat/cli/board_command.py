"""Opens TensorBoard on a run: what its ranks reported, and the event files that its stages wrote.

RUN is a run's id, the beginning of one, or a job's name; without it, the newest run. It may be under way: what is
new appears as it comes. Curves are named after the stage and the rank; what a stage wrote below its output directory
(histograms, images, profiles) stands under STAGE/output. Of a run in a cluster all of it is copied to here as it comes.

The address is printed. Ctrl-C ends the viewing only: the run goes on (exit 130).

Only this machine can open the page, because TensorBoard has no login. With --host 0.0.0.0 everybody who can reach
the machine can. From elsewhere, a tunnel is safer: ssh -L 5001:localhost:5001 MACHINE

Needs TensorBoard (the extra longboat[board]). Profiles also need the package xprof.
"""

from __future__ import annotations

import argparse
import errno
import importlib.util
import ipaddress
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from longboat.cli import engine_options
from longboat.cli.console import Console
from longboat.engines.interface import CanFetchBoard
from longboat.install_hint import install_command
from longboat.runs.journal_fold import plan_of
from longboat.runtime.errors import INTERRUPTED, LongboatError

if TYPE_CHECKING:
    from tensorboard.program import TensorBoard

PORT = 5001
PAUSE = 1.0
"""Seconds between two looks at the journal."""
FETCH = 5.0
"""Seconds between two looks at a cluster for what stages have written."""
_ANY_PORT = "name another port: `--port 0` takes any that is free"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run (the newest if not given)")
    parser.add_argument(
        "--port", type=int, metavar="N", help="where to listen (that of `board:`, else 5001); 0: any free port"
    )
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="on which address to listen (127.0.0.1)")
    engine_options.add_place_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    from longboat.runtime.driver.tensorboard_export import TensorBoardExport

    if args.port is not None and not 0 <= args.port <= 65535:
        raise LongboatError(f"--port {args.port}: a port is a number from 1 to 65535, or 0 for any that is free")
    handle = engine_options.find(args, console, args.run)
    run = handle.directory
    plan = plan_of(run)
    if args.port is None:
        args.port = plan.board.port if plan is not None and plan.board is not None else PORT
    viewer = _tensorboard()
    handle.follow(logs=False)
    if isinstance(handle, CanFetchBoard):
        handle.fetch_board()
    board = TensorBoardExport(run)
    board.poll()
    url = _launch(viewer, board.directory, args.host, args.port)
    if not _loopback(args.host):
        console.say(f"warning: TensorBoard has no login: everybody who can reach {args.host} can look at this run")
    if not importlib.util.find_spec("xprof") and any((run / "output").glob("**/plugins/profile")):
        console.say(f"this run has a profile; to see it here: {install_command(packages=('xprof',))}")
    try:
        console.say(f"TensorBoard of {run.name}; Ctrl-C ends the viewing, not the run")
        console.print(url)
        console.out.flush()
        fetched = time.monotonic()
        while True:
            time.sleep(PAUSE)
            if isinstance(handle, CanFetchBoard) and time.monotonic() - fetched > FETCH:
                _fetch(handle, console)
                fetched = time.monotonic()
            board.poll()
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        board.close()


def _fetch(run: CanFetchBoard, console: Console) -> None:
    """The cluster may be away for a while: the page goes on with what is here."""
    try:
        run.fetch_board()
    except (LongboatError, OSError) as error:
        console.say(f"warning: nothing new could be fetched: {getattr(error, 'message', error)}")


def _tensorboard() -> TensorBoard:
    try:
        from tensorboard import assets, default, program
    except ModuleNotFoundError as missing:
        raise LongboatError(
            f"the board is TensorBoard, which is not installed here (there is no {missing.name})",
            f"install it: {install_command('board')}",
        ) from None
    return program.TensorBoard(default.get_plugins(), assets.get_default_assets_zip_provider())


def _launch(viewer: TensorBoard, directory: Path, host: str, port: int) -> str:
    """Starts it in a thread of this process, so that it cannot outlive it; gives its address."""
    from tensorboard.program import TensorBoardServerException

    _try_to_listen(host, port)  # its own server would print a line and exit
    words = {"logdir": str(directory), "host": host, "port": port, "load_fast": "false", "reload_interval": 2}
    viewer.configure(("tensorboard",), **words)
    try:
        url: str = viewer.launch()
    except (TensorBoardServerException, SystemExit) as error:
        raise LongboatError(f"TensorBoard cannot listen on {host}:{port}: {error}", _ANY_PORT) from None
    return url


def _try_to_listen(host: str, port: int) -> None:
    try:
        kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(kind) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except OSError as error:
        busy = error.errno == errno.EADDRINUSE
        what = "another program listens there" if busy else str(error.strerror)
        hint = _ANY_PORT if busy else "leave --host out, or give it an address of this machine"
        raise LongboatError(f"TensorBoard cannot listen on {host}:{port}: {what}", hint) from None


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
