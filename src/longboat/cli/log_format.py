"""Format of ranks' lines: a prefix with the rank's name, and otherwise unchanged bytes.

Pieces of many lines are prefixed and written at once: a rank may print a million of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TextIO

from longboat.runs.logs import LogPiece, LogSource, settled

COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_MOVES = re.compile(r"\x1b(?:\[[0-9;?]*[@-ln-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[^\[\]])")
"""Terminal sequences other than colours: they could overwrite the screen or rename the window."""
_UNSEEN = {code: None for code in range(32) if chr(code) not in "\n\t\x1b"} | {127: None}


def tame(data: bytes) -> str:
    """A rank's output that is safe for a terminal: text and colours."""
    text = data.decode("utf-8", "replace")
    return (_MOVES.sub("", text) if "\x1b" in text else text).translate(_UNSEEN)


def write(stream: TextIO, data: bytes) -> None:
    """Writes bytes unchanged; to a stream without a buffer, as text with replacement characters."""
    buffer = getattr(stream, "buffer", None)
    if buffer is None:
        stream.write(data.decode("utf-8", "replace"))
        return
    stream.flush()
    buffer.write(data)
    buffer.flush()


def prefixer(one_stage: bool, colour: bool) -> Callable[[LogSource], bytes]:
    """Prefix of a rank's lines: `[train/worker-0] `, without the stage if there is only one."""
    held: dict[LogSource, bytes] = {}

    def prefix(source: LogSource) -> bytes:
        if source not in held:
            name = source.name if one_stage else f"{source.stage}/{source.name}"
            text = f"[{name}]"
            if colour:
                text = f"\x1b[{COLOURS[len(held) % len(COLOURS)]}m{text}\x1b[0m"
            held[source] = f"{text} ".encode()
        return held[source]

    return prefix


def prefixed(piece: LogPiece, prefix: bytes) -> bytes:
    """Adds the prefix to every line of a piece; redrawn lines in their last state."""
    body = settled(piece.data.removesuffix(b"\n"))
    return prefix + body.replace(b"\n", b"\n" + prefix) + b"\n"


def matching(piece: LogPiece, pattern: re.Pattern[str]) -> LogPiece | None:
    """The lines of a piece that match; None if none does."""
    lines = settled(piece.data.removesuffix(b"\n")).split(b"\n")
    matches = [line for line in lines if pattern.search(line.decode("utf-8", "replace"))]
    return LogPiece(piece.source, b"\n".join(matches) + b"\n") if matches else None
