"""Entry point of the command: while Python still imports the rest, Ctrl-C ends it silently."""

from __future__ import annotations

import signal


def program() -> int:
    quiet = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if quiet:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from longboat.cli.main import program as begin

    if quiet:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return begin()
