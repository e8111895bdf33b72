"""How ranks' lines look: a prefix that names the rank, and bytes that reach the stream as they were written.

Pieces of many lines are prefixed and written at once: a rank may print a million of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TextIO

from longboat.runs.logs import LogPiece, LogSource, settled

COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_MOVES = re.compile(r"\x1b(?:\[[0-9;?]*[@-ln-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[^\[\]])")
"""Terminal commands other than colours: they would draw over what is shown, or rename the window."""
_UNSEEN = {code: None for code in range(32) if chr(code) not in "\n\t\x1b"} | {127: None}


def tame(data: bytes) -> str:
    """What a rank printed, as a terminal may show it: text and colours."""
    text = data.decode("utf-8", "replace")
    return (_MOVES.sub("", text) if "\x1b" in text else text).translate(_UNSEEN)


def write(stream: TextIO, data: bytes) -> None:
    """Bytes as they are to a real stream; as text, with marks for what is none, to one without bytes."""
    buffer = getattr(stream, "buffer", None)
    if buffer is None:
        stream.write(data.decode("utf-8", "replace"))
        return
    stream.flush()
    buffer.write(data)
    buffer.flush()


def prefixer(one_stage: bool, colour: bool) -> Callable[[LogSource], bytes]:
    """Names a rank before its lines: `[train/worker-0] `, without the stage where there is only one."""
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
    """Every line of a piece behind its prefix, redrawn lines in their last state."""
    body = settled(piece.data.removesuffix(b"\n"))
    return prefix + body.replace(b"\n", b"\n" + prefix) + b"\n"


def matching(piece: LogPiece, pattern: re.Pattern[str]) -> LogPiece | None:
    """The lines of a piece that match; None where none does."""
    lines = settled(piece.data.removesuffix(b"\n")).split(b"\n")
    found = [line for line in lines if pattern.search(line.decode("utf-8", "replace"))]
    return LogPiece(piece.source, b"\n".join(found) + b"\n") if found else None
