"""`set_param`: the value changes, and nothing else does."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from longboat import spec
from longboat.runtime.errors import LongboatError
from tests.unit.spec.jobs import WIDE_DEEP, write

REST = "run: x ${A}\n"


def changed(directory: Path, params: str, value: str, name: str = "A") -> str:
    """What stands in place of the params after the change; the file reads back as it should."""
    path = write(directory, f"name: job\nparams:\n{params}{REST}")
    spec.set_param(path, name, value)
    text = path.read_bytes().decode()
    assert text.startswith("name: job\nparams:\n")
    assert text.endswith(REST)
    return text.removeprefix("name: job\nparams:\n").removesuffix(REST)


CASES = [
    ("  A: 5   # five\n", "6", "  A: 6   # five\n", 6),
    ("  A: 5\n", "0x10", "  A: 0x10\n", 16),
    ("  A: 0.5\n", "1", "  A: 1.0\n", 1.0),
    ("  A: text # t\n", "other", "  A: other # t\n", "other"),
    ("  A: text\n", "5", "  A: '5'\n", "5"),
    ("  A: text\n", "true", "  A: 'true'\n", "true"),
    ("  A: text\n", "a: b", "  A: 'a: b'\n", "a: b"),
    ("  A: text\n", "a # b", "  A: 'a # b'\n", "a # b"),
    ("  A: text\n", "it's", "  A: it's\n", "it's"),
    ("  A: text\n", "", "  A: ''\n", ""),
    ("  A: text\n", " x ", "  A: ' x '\n", " x "),
    ("  A: text\n", "two\nlines", '  A: "two\\nlines"\n', "two\nlines"),
    ("  A: text\n", "- x", "  A: '- x'\n", "- x"),
    ("  A: text\n", "*x", "  A: '*x'\n", "*x"),
    ("  A: text\n", "日本 ü", "  A: 日本 ü\n", "日本 ü"),
    ('  A: "text"\n', "other", '  A: "other"\n', "other"),
    ('  A: "text"\n', 'a "b" \\', '  A: "a \\"b\\" \\\\"\n', 'a "b" \\'),
    ("  A: 'text'\n", "it's", "  A: 'it''s'\n", "it's"),
    ("  A: {value: 5, help: h} # c\n", "6", "  A: {value: 6, help: h} # c\n", 6),
    ("  A: {value: t, help: h}\n", "a, b}", "  A: {value: 'a, b}', help: h}\n", "a, b}"),
    ("  A: {value: , help: h}\n", "6", "  A: {value: 6, help: h}\n", 6),
    ("  A: {value, help: h}\n", "6", "  A: {value: 6, help: h}\n", 6),
    ("  A: {help: h}\n", "6", "  A: {value: 6, help: h}\n", 6),
    ("  A: {}\n", "6", "  A: {value: 6}\n", 6),
    ("  A:\n    help: h\n    required: true\n", "6", "  A:\n    value: 6\n    help: h\n    required: true\n", 6),
    ("  A:\n    help: h\n    value: 5\n", "6", "  A:\n    help: h\n    value: 6\n", 6),
    ("  A:\n", "6", "  A: 6\n", 6),
    ("  A: # none\n", "6", "  A: 6 # none\n", 6),
    ("  A: ~\n", "x", "  A: x\n", "x"),
    ("  A: |\n    some\n    text\n  B: 1\n", "one", "  A: one\n  B: 1\n", "one"),
    ("  A: &a 5\n  B: *a\n", "5", "  A: &a 5\n  B: *a\n", 5),
    ("  B: &b 5\n  A: *b\n", "6", "  B: &b 5\n  A: 6\n", 6),
    ("  A: some\n    more\n  B: 1\n", "one", "  A: one\n  B: 1\n", "one"),
    ("  A: ${B}\n  B: 1\n", "7", "  A: 7\n  B: 1\n", 7),
    ("  A:\n  B: 2\n", "${B}", "  A: ${B}\n  B: 2\n", 2),
]


@pytest.mark.parametrize(("params", "value", "expected", "read"), CASES, ids=[f"{p!r}={v!r}" for p, v, _, _ in CASES])
def test_only_the_value_is_replaced(tmp_path: Path, params: str, value: str, expected: str, read: object) -> None:
    assert changed(tmp_path, params, value) == expected
    found = next(p.value for p in spec.load(tmp_path).params if p.name == "A")
    assert (found, type(found)) == (read, type(read))


def test_the_whole_example_keeps_every_other_byte(tmp_path: Path) -> None:
    path = write(tmp_path, WIDE_DEEP)
    assert spec.set_param(path, "STEPS", "2000") == 1
    assert path.read_text() == WIDE_DEEP.replace("STEPS: 1000   #", "STEPS: 2000   #")


def test_windows_line_endings_and_the_byte_order_mark_stay(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    text = "name: job\r\nparams:\r\n  A:\r\n    help: h\r\nrun: x\r\n"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    spec.set_param(path, "A", "5")
    assert path.read_bytes() == b"\xef\xbb\xbf" + text.replace("    help", "    value: 5\r\n    help").encode()


def test_mode_and_link_stay_and_no_other_file_is_left(tmp_path: Path) -> None:
    path = write(tmp_path, "name: job\nparams: {A: 5}\nrun: x\n", "real.yaml")
    path.chmod(0o640)
    link = tmp_path / "job.yaml"
    link.symlink_to("real.yaml")
    spec.set_param(link, "A", "6")
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path)) == ["job.yaml", "real.yaml"]
    assert "A: 6" in path.read_text()


def test_the_uses_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path, "name: job\nparams: {A: 5, B: '${A}'}\nrun: x ${A} ${A}\n")
    assert spec.set_param(path, "A", "6") == 3


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("STEP", "5", "has no param `STEP`"),
        ("STEPS", "many", "`STEPS` must be a whole number (the file has 1000)"),
        ("IMAGE_SUFFIX", "${NOPE}", "unknown param `NOPE`"),
        ("USER_ID", "-1", "`user` must be a whole number"),
        ("REGISTRY", "a b", "`image` must be the name of an image"),
    ],
)
def test_what_would_break_the_file_leaves_it_alone(tmp_path: Path, name: str, value: str, message: str) -> None:
    path = write(tmp_path, WIDE_DEEP)
    with pytest.raises(LongboatError) as caught:
        spec.set_param(path, name, value)
    assert message in caught.value.message
    assert path.read_text() == WIDE_DEEP
    assert os.listdir(tmp_path) == ["job.yaml"]


def test_an_unknown_param_gets_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(LongboatError) as caught:
        spec.set_param(write(tmp_path, WIDE_DEEP), "STEP", "5")
    assert caught.value.hint == "did you mean `STEPS`?"


def test_a_file_that_is_no_yaml_says_so(tmp_path: Path) -> None:
    with pytest.raises(spec.JobError, match="not valid YAML"):
        spec.set_param(write(tmp_path, "name: [\n"), "A", "5")


def test_several_required_params_can_be_set_one_by_one(tmp_path: Path) -> None:
    path = write(tmp_path, "name: job\nparams: {A: {required: true}, B: {required: true}}\nrun: x\nranks: 2\n")
    spec.set_param(path, "A", "5")
    spec.set_param(path, "B", "x")
    assert [p.value for p in spec.load(path).plan().params] == [5, "x"]
