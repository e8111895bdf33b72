"""Tables in plain text and in Markdown."""

from __future__ import annotations

from longboat.cli.log_format import tame
from longboat.cli.table import markdown, render, shorten, width


def test_columns_are_as_wide_as_their_widest_cell_and_lines_have_no_trailing_blanks() -> None:
    assert render(("A", "B"), [("long one", "x"), ("s", "")]) == "A         B\nlong one  x\ns"


def test_rows_may_stand_without_headers_and_be_short() -> None:
    assert render((), [("a", "b"), ("ccc",)], indent="  ") == "  a    b\n  ccc"
    assert render((), []) == ""


def test_wide_and_combining_characters_count_as_a_terminal_shows_them() -> None:
    assert (width("日本"), width("e\u0301"), width("abc")) == (4, 1, 3)
    assert render((), [("日本", "x"), ("abcd", "y")]) == "日本  x\nabcd  y"


def test_in_a_narrow_terminal_the_last_cells_are_shortened_and_keep_their_least() -> None:
    rows = [("a" * 10, "b" * 60), ("c", "short")]
    assert render((), rows, columns=40) == f"{'a' * 10}  {'b' * 27}…\nc           short"
    assert render((), rows, columns=5) == f"{'a' * 10}  {'b' * 23}…\nc           short"
    assert render((), rows, columns=80) == render((), rows)


def test_what_would_break_a_line_does_not() -> None:
    assert render((), [("a\nb\tc", "\x1b[31m")]) == "a b c  \\x1b[31m"


def test_markdown_escapes_what_would_end_a_cell() -> None:
    assert markdown(("A", "B"), [("x|y", "\\")]) == "| A | B |\n| --- | --- |\n| x\\|y | \\\\ |"


def test_a_text_is_cut_only_when_it_must_be() -> None:
    assert shorten("abc", 3) == "abc"
    assert shorten("abcdef", 4) == "abc…"
    assert width(shorten("日本日本", 5)) <= 5


def test_what_a_rank_prints_reaches_a_terminal_as_text_and_colours_alone() -> None:
    printed = b"\x1b[2J\x1b[31mred\x1b[0m \x1b]0;a title\x07\0bell\x07 \x1b[5A\xff\n\ttab\n"
    assert tame(printed) == "\x1b[31mred\x1b[0m bell \ufffd\n\ttab\n"
