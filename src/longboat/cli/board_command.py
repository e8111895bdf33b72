"""Open TensorBoard on a run: metrics of its ranks, and event files that its stages wrote.

Use it during or after a run; new data appears as it arrives. Curves are named after the stage and the rank; what a
stage wrote below its output directory (histograms, images, profiles) is under STAGE/output. Data of a run in a cluster
is copied to this machine as it arrives.

  longboat board                  the newest run, on port 5001
  longboat board mnist --port 0   any free port

RUN is a run's id, the beginning of one, or a job's name; without it, the newest run. The command prints the address.
Ctrl-C closes TensorBoard; the run continues (exit 130).

Only this machine can open the page, because TensorBoard has no login. With --host 0.0.0.0 everybody who can reach
the machine can. From elsewhere, a tunnel is safer: ssh -L 5001:localhost:5001 MACHINE

Needs TensorBoard (the extra longboat[board]). Profiles also need the package xprof.
"""

from __future__ import annotations

import argparse
import errno
import importlib.util
import ipaddress
import os
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
"""Seconds between two reads of the journal."""
FETCH = 5.0
"""Seconds between two copies from a cluster."""
_ANY_PORT = "use --port 0 to pick a free port"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run (the newest if not given)")
    parser.add_argument("--port", type=int, metavar="N", help="port (that of `board:`, else 5001); 0: any free port")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (127.0.0.1)")
    engine_options.add_place_arguments(parser)


def main(args: argparse.Namespace, console: Console) -> int:
    from longboat.runtime.driver.tensorboard_export import TensorBoardExport

    if args.port is not None and not 0 <= args.port <= 65535:
        raise LongboatError(f"--port {args.port}: must be a number from 1 to 65535, or 0 for any free port")
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
        console.say(f"warning: TensorBoard has no login: everybody who can reach {args.host} can see this run")
    if not importlib.util.find_spec("xprof") and any((run / "output").glob("**/plugins/profile")):
        console.say(f"this run has a profile; to see it here: {install_command(packages=('xprof',))}")
    try:
        console.say(f"TensorBoard of {run.name}; Ctrl-C closes it, the run continues")
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
        board.close()
        console.err.flush()
        # TensorBoard's threads run native code. Python ends such threads when it shuts down, and some then abort.
        os._exit(INTERRUPTED)
    finally:
        board.close()


def _fetch(run: CanFetchBoard, console: Console) -> None:
    """Copies new data; while the cluster cannot be reached, the page shows what was copied before."""
    try:
        run.fetch_board()
    except (LongboatError, OSError) as error:
        console.say(f"warning: cannot fetch new data: {getattr(error, 'message', error)}")


def _tensorboard() -> TensorBoard:
    try:
        from tensorboard import assets, default, program
    except ModuleNotFoundError as missing:
        raise LongboatError(
            f"TensorBoard is not installed (no module {missing.name})",
            f"install it: {install_command('board')}",
        ) from None
    return program.TensorBoard(default.get_plugins(), assets.get_default_assets_zip_provider())


def _launch(viewer: TensorBoard, directory: Path, host: str, port: int) -> str:
    """Starts TensorBoard in a thread, so that it ends with this process; returns its address."""
    from tensorboard.program import TensorBoardServerException

    _try_to_listen(host, port)  # its own server would print a line and exit
    options = {"logdir": str(directory), "host": host, "port": port, "load_fast": "false", "reload_interval": 2}
    viewer.configure(("tensorboard",), **options)
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
        what = "the port is already in use" if busy else str(error.strerror)
        hint = _ANY_PORT if busy else "omit --host, or use an address of this machine"
        raise LongboatError(f"TensorBoard cannot listen on {host}:{port}: {what}", hint) from None


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
