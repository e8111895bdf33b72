"""Plain-text tables: columns aligned by what a terminal shows, nothing cut off.

Cutting to the terminal's width is the caller's wish: a table in a file or a pipe is always
whole. Nothing here prints.
"""

from __future__ import annotations

from collections.abc import Sequence


def width(text: str) -> int:
    """How many columns a terminal gives to the text."""
    if text.isascii():
        return len(text)
    import unicodedata

    wide = sum(1 for c in text if unicodedata.east_asian_width(c) in "WF")
    unseen = sum(1 for c in text if unicodedata.category(c) in ("Mn", "Me", "Cf"))
    return len(text) + wide - unseen


def shorten(text: str, columns: int) -> str:
    """The text in at most that many columns, its end replaced by `…` if it had to be cut."""
    if width(text) <= columns:
        return text
    while text and width(text) > columns - 1:
        text = text[:-1]
    return text.rstrip() + "…"


LEAST = 24
"""Columns that the last cell of a line keeps in however narrow a terminal."""


def render(headers: Sequence[str], rows: Sequence[Sequence[str]], indent: str = "", columns: int = 0) -> str:
    """The table without a closing newline. Without headers, the rows alone. In so many columns, if
    given, the last cells are shortened until the lines fit."""
    lines = [list(row) for row in ([headers, *rows] if headers else rows)]
    lines = [[_one_line(cell) for cell in line] for line in lines]
    count = max(map(len, lines), default=0)
    widths = [max(width(line[i]) for line in lines if i < len(line)) for i in range(count)]
    if columns:
        room = max(LEAST, columns - len(indent) - sum(each + 2 for each in widths[:-1]))
        lines = [[*line[:-1], shorten(line[-1], room)] if len(line) == count else line for line in lines]
    return "\n".join(
        (indent + "  ".join(cell + " " * (widths[i] - width(cell)) for i, cell in enumerate(line))).rstrip()
        for line in lines
    )


def markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table as GitHub's Markdown, without a closing newline."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(_one_line(cell).replace("\\", "\\\\").replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(headers), "|" + " --- |" * len(headers), *map(line, rows)])


def _one_line(cell: str) -> str:
    """A cell with a line break would break the table: breaks show as spaces, other control characters as escapes."""
    cell = " ".join(cell.split()) if any(c in cell for c in "\n\r\t") else cell
    return cell if cell.isprintable() else "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in cell)
