"""How problems look."""

from __future__ import annotations

from pathlib import Path

import pytest

from longboat import spec
from longboat.spec.problems import JobError, Problem
from tests.unit.spec.jobs import problems, write


def shown(monkeypatch: pytest.MonkeyPatch, directory: Path, text: str) -> JobError:
    write(directory, text)
    monkeypatch.chdir(directory)
    with pytest.raises(spec.JobError) as caught:
        spec.load("job.yaml")
    return caught.value


def test_each_has_place_line_caret_and_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    error = shown(
        monkeypatch, tmp_path, "name: job\nstages:\n  train:\n    comand: python train.py\n    restarts: many\n"
    )
    assert str(error) == (
        "error: job.yaml:4:5: unknown key `comand`\n"
        "  4 |     comand: python train.py\n"
        "    |     ^^^^^^\n"
        "  hint: did you mean `run`?\n"
        "\n"
        'error: job.yaml:5:15: `restarts` must be a whole number from 0 to 1000000, not the text "many"\n'
        "  5 |     restarts: many\n"
        "    |               ^^^^\n"
        "\n"
        "2 problems in job.yaml"
    )
    assert f"error: {error.message}" == str(error)
    assert error.code == 2


def test_the_caret_stands_below_what_it_means_after_wide_characters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    error = shown(monkeypatch, tmp_path, 'name: job\nrun: x\nenv: {"日本": 1, b-c:\t1}\n')
    last = str(error).split("\n\n")[1].splitlines()
    assert last[1] == '  3 | env: {"日本": 1, b-c:\t1}'
    assert last[2] == "    | " + " " * 17 + "^^^"


def test_a_long_line_is_cut_around_its_caret() -> None:
    text = "a" * 500 + "X" + "b" * 500
    lines = str(JobError([Problem("f", 1, 501, 1, "here")], {"f": text})).splitlines()
    assert len(lines[1]) < 130
    assert lines[1][lines[2].index("^")] == "X"


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert "\x1b" not in str(JobError([Problem("f", 1, 1, 1, "here")], {"f": "\x1b[31mred"}))


def test_hundreds_are_counted_not_shown(tmp_path: Path) -> None:
    found = problems(tmp_path, "name: job\nrun: x\n" + "".join(f"zzz{i}: 1\n" for i in range(300)))
    assert len(found) == 300
    text = str(JobError(found))
    assert text.count("error: ") == 40
    assert "300 problems in" in text
    assert text.endswith("(260 not shown)")


def test_problems_are_values() -> None:
    problem = Problem("f", 1, 1, 1, "here")
    with pytest.raises(AttributeError):
        problem.line = 2  # type: ignore[misc]
    assert JobError([problem, problem]).problems == (problem,)
