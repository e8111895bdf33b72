"""The job file as YAML: what its words mean, and every way in which it can fail to be YAML."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from longboat import spec
from longboat.runtime.errors import LongboatError
from longboat.spec.problems import Problems
from longboat.spec.yaml_nodes import ListNode, MapNode, ScalarNode, compose
from tests.unit.spec.jobs import SHORT, WIDE_DEEP, load, planned, problem, problems, write


def value_of(text: str) -> object:
    root = compose(f"key: {text}\n", Problems("job.yaml"))
    assert isinstance(root, MapNode)
    node = root.entries["key"].value
    assert isinstance(node, ScalarNode)
    return node.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("12:30", "12:30"),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-7", -7),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("null", None),
        ("2026-11-15", "2026-11-15"),
        ("'5'", "5"),
        ('"true"', "true"),
        ("!!str 5", "5"),
        ("! 5", "5"),
        ('!!int "5"', 5),
        ("1.2.3", "1.2.3"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_a_word_means_what_yaml_1_2_says(text: str, value: object) -> None:
    found = value_of(text)
    assert found == value
    assert type(found) is type(value)


def test_windows_line_endings_and_a_byte_order_mark_change_nothing(tmp_path: Path) -> None:
    plain = planned(tmp_path, WIDE_DEEP)
    (tmp_path / "job.yaml").write_bytes(b"\xef\xbb\xbf" + WIDE_DEEP.replace("\n", "\r\n").encode())
    assert spec.load(tmp_path / "job.yaml").plan() == plain


def test_places_are_right_with_windows_line_endings(tmp_path: Path) -> None:
    found = problem(tmp_path, (SHORT + "colour: red\n").replace("\n", "\r\n"))
    assert (found.line, found.column, found.length) == (3, 1, 6)


def test_the_parser_in_python_reads_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = planned(tmp_path, WIDE_DEEP)
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert planned(tmp_path, WIDE_DEEP) == plain
    assert problem(tmp_path, "name: a\n\trun: b\n").message == "tabs cannot indent YAML"


def test_anchors_and_merge_keys_work_and_what_stands_there_wins(tmp_path: Path) -> None:
    plan = planned(
        tmp_path,
        """\
        name: job
        x-base: &base {restarts: 7, timeout: 10}
        x-more: &more {timeout: 20, retries: 2}
        stages:
          a: {<<: *base, run: "true", restarts: 1}
          b: {<<: [*base, *more], run: "true"}
        """,
    )
    a, b = plan.stages
    assert (a.restarts, a.timeout, a.retries) == (1, 10, 0)
    assert (b.restarts, b.timeout, b.retries) == (7, 10, 2)


def test_a_problem_behind_an_alias_is_told_once(tmp_path: Path) -> None:
    text = """\
    name: job
    x-base: &base {run: "true", colour: red}
    stages:
      a: *base
      b: *base
    """
    assert problem(tmp_path, text).message == "unknown key `colour`"


BAD = [
    ("name: [a\n", 2, "not valid YAML"),
    ("name: a\n\trun: b\n", 2, "tabs cannot indent YAML"),
    ("", 1, "the file is empty"),
    ("# only a comment\n", 1, "the file is empty"),
    ("- a\n- b\n", 1, "a job file must be a mapping"),
    ("hello\n", 1, "a job file must be a mapping"),
    ("name: a\nrun: b\n---\nname: b\n", 3, "a second YAML document starts here"),
    ("name: a\nrun: b\nname: c\n", 3, "duplicate key `name`"),
    ("name: a\nrun: *nowhere\n", 2, "anchor `&nowhere` is not defined above"),
    ("name: a\nrun: &r [x, *r]\n", 2, "`*r` refers to itself"),
    ("name: a\nrun: !!python/object:os.system x\n", 2, "unknown tag `!!python/object:os.system`"),
    ("name: a\nrun: !mine x\n", 2, "unknown tag `!mine`"),
    ("name: a\n? [x]\n: b\nrun: c\n", 2, "a key must be a scalar, not a list or a mapping"),
    ("name: a\nrun: b\x07\n", 2, "the character U+0007 is not allowed in YAML"),
    ("name: a\nrun: b\n<<: 5\n", 3, "`<<` needs a mapping or a list of mappings"),
    ("name: a\nrun: {x: ${Y}}\n", 2, "not valid YAML"),
]


@pytest.mark.parametrize(("text", "line", "message"), BAD, ids=[message for _, _, message in BAD])
def test_what_is_no_job_file_is_told_with_its_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    found = problem(tmp_path, text)
    assert found.message.startswith(message)
    assert found.line == line


def test_a_param_in_a_flow_mapping_without_quotes_gets_the_fix(tmp_path: Path) -> None:
    assert problem(tmp_path, "name: a\nenv: {x: ${Y}}\n").hint == 'inside { } and [ ], put "${NAME}" in quotes'


def test_aliases_that_grow_without_end_are_refused_before_they_do(tmp_path: Path) -> None:
    lines = ["name: a", "x-0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"x-{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    assert "more than 100,000 values" in problem(tmp_path, "\n".join(lines)).message


@pytest.mark.parametrize(
    "text", ["[" * 300_000, "- " * 300_000 + "x", "{a: " * 300_000], ids=["lists", "items", "maps"]
)
def test_nesting_without_end_is_refused(tmp_path: Path, text: str) -> None:
    assert "is nested more than 60 levels deep" in problem(tmp_path, text).message


def test_a_file_that_is_not_utf8_is_told_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes("name: a\nrun: caf\xe9\n".encode("latin-1"))
    with pytest.raises(spec.JobError) as caught:
        spec.load(path)
    assert (caught.value.problems[0].line, caught.value.problems[0].column) == (2, 9)
    assert "is not valid UTF-8" in caught.value.message


def test_a_directory_means_the_job_file_in_it(tmp_path: Path) -> None:
    write(tmp_path, SHORT, "job.yml")
    assert spec.load(tmp_path).name == "hello"
    write(tmp_path, SHORT.replace("hello", "other"), "job.yaml")
    assert spec.load(tmp_path).name == "other"


def test_a_missing_file_and_a_directory_without_one_point_to_init(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing.yaml"):
        with pytest.raises(LongboatError) as caught:
            spec.load(path)
        assert "longboat init" in caught.value.hint


def test_a_file_that_may_not_be_read_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "job.yaml")
    with pytest.raises(LongboatError, match=r"no job\.yaml"):
        spec.load(tmp_path)
    (tmp_path / "x\0").parent.mkdir(exist_ok=True)
    with pytest.raises(LongboatError):
        spec.load(f"{tmp_path}/a\0b")


def test_every_node_knows_its_place() -> None:
    root = compose("a: 1\nb:\n  - xyz\n  - 'ü': \"q\"\n", Problems("job.yaml"))
    assert isinstance(root, MapNode)
    items = root.entries["b"].value
    assert isinstance(items, ListNode)
    assert (items.items[0].span.line, items.items[0].span.column, items.items[0].span.length) == (3, 5, 3)
    last = items.items[1]
    assert isinstance(last, MapNode)
    assert last.entries["ü"].value.span == (4, 10, 3)


def test_all_problems_are_told_at_once_in_the_order_of_lines(tmp_path: Path) -> None:
    found = problems(tmp_path, "colour: red\nstages:\n  b: {run: 5, ranks: -1}\n  a: {run: x, after: c}\nname: A!\n")
    assert [p.line for p in found] == [1, 3, 3, 4, 5]
    assert load(tmp_path, SHORT).name == "hello"
