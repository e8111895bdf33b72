from __future__ import annotations

import pytest

from longboat.runs import formatting
from longboat.runtime.errors import LongboatError


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("90", 90), ("30s", 30), ("5m", 300), ("1h30m", 5400), ("7d", 604800), ("2w", 1209600), ("1.5h", 5400)],
)
def test_durations_are_read(text: str, wanted: float) -> None:
    assert formatting.seconds(text) == wanted


@pytest.mark.parametrize("text", ["", "soon", "5 parsecs", "-3m", "1h3x"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(LongboatError, match="not a duration"):
        formatting.seconds(text)


def test_a_moment_is_a_duration_before_now_or_an_iso_time() -> None:
    assert formatting.moment("5m", 1000.0) == 700.0
    assert formatting.moment("1970-01-01T01:00:00+00:00", 7200.0) == 3600.0
    with pytest.raises(LongboatError, match="in the future"):
        formatting.moment("1970-01-01T01:00:00+00:00", 0.0)
    with pytest.raises(LongboatError, match="not a time"):
        formatting.moment("2026-99-99", 0.0)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(0.43, "0.4s"), (59.7, "1m"), (185, "3m 5s"), (7800, "2h 10m"), (86400 * 4, "4d"), (-1, "0.0s")],
)
def test_spans_are_said_in_their_two_largest_units(value: float, wanted: str) -> None:
    assert formatting.span(value) == wanted


@pytest.mark.parametrize(
    ("count", "wanted"), [(812, "812 B"), (4200, "4.2 kB"), (999_990, "1.0 MB"), (1_300_000_000, "1.3 GB")]
)
def test_sizes_are_said_short(count: int, wanted: str) -> None:
    assert formatting.size(count) == wanted


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(12, "12"), (0.69314, "0.6931"), (3.14e-5, "3.14e-05"), (float("nan"), "nan"), (float("inf"), "inf")],
)
def test_figures_are_said_short(value: float, wanted: str) -> None:
    assert formatting.figure(value) == wanted
