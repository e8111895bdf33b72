"""Whatever is done to a job file, its reader answers with a Plan or with an error for the user."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from longboat import spec
from longboat.runtime import plan
from longboat.runtime.errors import LongboatError
from tests.unit.spec.jobs import SHORT, WIDE_DEEP

Change = Callable[[random.Random, bytes], bytes]


def drop_a_line(rng: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    del lines[rng.randrange(len(lines))]
    return b"\n".join(lines)


def swap_two_lines(rng: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[i], lines[j] = lines[j], lines[i]
    return b"\n".join(lines)


def repeat_a_line(rng: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    lines.insert(rng.randrange(len(lines)), rng.choice(lines))
    return b"\n".join(lines)


def shift_a_line(rng: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    i = rng.randrange(len(lines))
    lines[i] = rng.choice([b"  ", b"\t", b"    ", b""]) + lines[i].lstrip()
    return b"\n".join(lines)


def change_bytes(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 5)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def put_a_token(rng: random.Random, data: bytes) -> bytes:
    tokens = [
        b"${",
        b"}",
        b"{",
        b"[",
        b"]",
        b"&a ",
        b"*a",
        b"!!int ",
        b": ",
        b"- ",
        b"<<: ",
        b"'",
        b'"',
        b"|",
        b"#",
        b"\0",
    ]
    tokens += [b"${STEPS}", b"$${", b"null", b"true", b"-1", b"1e999", b".nan", b"\r", b"\xe2\x80\xa8", b"? ", b"--- "]
    at = rng.randrange(len(data))
    return data[:at] + rng.choice(tokens) + data[at:]


def cut_it_short(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def change_a_value(rng: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    i = rng.randrange(len(lines))
    values = [
        b"5",
        b"-1",
        b"[]",
        b"{}",
        b"[a, {b: c}]",
        b"",
        b"~",
        b"true",
        b"text",
        b"${STEPS}",
        b"1e400",
        b"'\\0'",
        b'"\\0"',
    ]
    lines[i] = lines[i].split(b":")[0] + b": " + rng.choice(values)
    return b"\n".join(lines)


CHANGES: tuple[Change, ...] = (
    drop_a_line,
    swap_two_lines,
    repeat_a_line,
    shift_a_line,
    change_bytes,
    put_a_token,
    cut_it_short,
    change_a_value,
)


@pytest.mark.parametrize("change", CHANGES, ids=[change.__name__ for change in CHANGES])
def test_only_errors_for_the_user_escape(tmp_path: Path, change: Change) -> None:
    rng = random.Random(change.__name__)
    path = tmp_path / "job.yaml"
    ends = {"plan": 0, "error": 0}
    for _ in range(150):
        data = rng.choice((WIDE_DEEP, WIDE_DEEP, SHORT)).encode()
        for _ in range(rng.randint(1, 3)):
            data = rng.choice((change, change, rng.choice(CHANGES)))(rng, data) or b"\n"
        path.write_bytes(data)
        try:
            found = spec.load(path).plan()
        except LongboatError:
            ends["error"] += 1
        else:
            assert plan.from_json(plan.to_json(found)) == found
            ends["plan"] += 1
    assert ends["error"]
