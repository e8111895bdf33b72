"""Progress in what a rank writes, however it is cut up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longboat.runtime.agent import rank_output
from longboat.runtime.agent.rank_output import LONGEST, FileTail, Point, RankOutput, parse_line


def points(found: list[Point]) -> list[Point]:
    return [{key: value for key, value in point.items() if key != "t"} for point in found]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("longboat: step=10 total=100 loss=0.31", {"step": 10, "total": 100, "loss": 0.31}),
        ("longboat: step=1e3", {"step": 1000}),
        ("longboat: step=1_000 loss=1_0.5", {"step": 1000, "loss": 10.5}),
        ("longboat: loss=-.5 norm=+3 tiny=1e-300", {"loss": -0.5, "norm": 3, "tiny": 1e-300}),
        ("longboat: eval/top-5.acc=0.9", {"eval/top-5.acc": 0.9}),
        ("longboat: loss=nan up=inf down=-inf", {"loss": "nan", "up": "inf", "down": "-inf"}),
        ("longboat: loss=1e999", {"loss": "inf"}),
        ("longboat: count=" + "9" * 400, {"count": "inf"}),
        ("longboat: step=nan loss=1", {"loss": 1}),
        ("longboat: step=1e999 total=" + "9" * 3000, {}),
        ("longboat: loss=1_ x=2__0", {"loss": 1, "x": 20}),
        ("longboat:step=1", {}),
        (" longboat: step=1", {}),
        ("longboat: step=1 and more", {}),
        ("longboat: step=", {}),
        ("longboat: step=0x10", {}),
        ("longboat: 1step=1", {}),
        ("longboat: ", {}),
    ],
)
def test_a_line_is_progress_only_in_its_exact_grammar(line: str, found: Point) -> None:
    assert parse_line(line.encode()) == found
    assert json.loads(json.dumps(parse_line(line.encode()), allow_nan=False)) == found


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "log", tmp_path / "reports"


def follower(files: tuple[Path, Path], log_offset: int = 0, report_offset: int = 0) -> RankOutput:
    return RankOutput(str(files[0]), log_offset, str(files[1]), report_offset)


def append(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


def test_files_that_do_not_exist_yet_hold_nothing(files: tuple[Path, Path]) -> None:
    it = follower(files)
    assert it.news() == ([], [])
    append(files[0], b"longboat: step=1\n")
    assert points(it.news()[0]) == [{"step": 1}]
    it.close()


def test_lines_are_found_however_the_bytes_arrive(files: tuple[Path, Path]) -> None:
    text = b"begin\nlongboat: step=1\nnoise longboat: step=9\nlongboat: step=2 loss=0.5\r\nlongboat: step=3\n"
    it = follower(files)
    found: list[Point] = []
    for byte in text:
        append(files[0], bytes([byte]))
        found += it.news()[0]
    assert points(found) == [{"step": 1}, {"step": 2, "loss": 0.5}, {"step": 3}]
    it.close()


def test_what_stood_in_the_files_before_the_rank_started_is_not_its_progress(files: tuple[Path, Path]) -> None:
    append(files[0], b"longboat: step=1\n")
    append(files[1], b'{"step":2}\n')
    it = follower(files, files[0].stat().st_size, files[1].stat().st_size)
    append(files[0], b"longboat: step=3\n")
    append(files[1], b'{"step":4}\n')
    assert points(it.news()[0]) == [{"step": 4}, {"step": 3}]
    it.close()


def test_an_endless_line_is_not_kept_in_memory(files: tuple[Path, Path]) -> None:
    it = follower(files)
    append(files[0], b"longboat: step=1 " + b"x" * LONGEST)
    assert it.news()[0] == []
    assert len(it._line_start) < LONGEST
    append(files[0], b"\nlongboat: step=2\n")
    assert points(it.news()[0]) == [{"step": 2}]
    it.close()


def test_half_a_report_waits_for_its_other_half_and_a_broken_one_is_skipped(files: tuple[Path, Path]) -> None:
    it = follower(files)
    append(files[1], b'{"step":1}\n{"st')
    assert points(it.news()[0]) == [{"step": 1}]
    append(files[1], b'ep":2}\nnot json\n[1]\n\n{"step":3}\n')
    assert points(it.news()[0]) == [{"step": 2}, {"step": 3}]
    it.close()


def test_a_report_that_somebody_else_wrote_cannot_spoil_the_journal(files: tuple[Path, Path]) -> None:
    it = follower(files)
    append(files[1], b'{"step":"abc","loss":NaN,"big":1' + b"0" * 400 + b',"list":[1],"fine":2}\n')
    (point,) = it.news()[0]
    assert point == {"loss": "nan", "big": "inf", "fine": 2}
    json.dumps(point, allow_nan=False)
    it.close()


def test_checkpoint_records_come_apart_from_points(files: tuple[Path, Path]) -> None:
    it = follower(files)
    whole = {"step": 1, "path": "x", "part": 0, "of": 1, "bytes": 5, "crc32": "0badcafe"}
    failed = {"step": 2, "error": "full"}
    broken: list[object] = [{}, [], 5, {"step": 1}, {"error": "full"}]
    broken += [{**whole, "bytes": "many"}, {**whole, "path": 1}, {**whole, "crc32": 5}]
    append(files[1], b'{"step":1}\n')
    for record in (whole, failed, *broken):
        append(files[1], json.dumps({"checkpoint": record}).encode() + b"\n")
    append(files[1], b'{"step":2}\n')
    found, checkpoints = it.news()
    assert points(found) == [{"step": 1}, {"step": 2}]
    assert checkpoints == [whole, failed]
    it.close()


def test_a_tail_gives_every_byte_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    tail = FileTail(str(path), 0)
    assert tail.chunks() == []
    append(path, b"a" * 3_000_000)
    append(path, b"b")
    data = b"".join(tail.chunks())
    assert data == b"a" * 3_000_000 + b"b"
    assert tail.chunks() == []
    tail.close()


@pytest.mark.parametrize("way", [0, 1], ids=["printed", "reported"])
def test_whoever_reads_on_while_it_is_behind_has_all_that_a_rank_wrote_at_once(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, way: int
) -> None:
    monkeypatch.setattr(rank_output, "CHUNK", 100)
    monkeypatch.setattr(rank_output, "AT_ONCE", 3)
    form = ("longboat: step=%d\n", '{"step":%d}\n')[way]
    append(files[way], b"".join((form % step).encode() for step in range(200)))
    it = follower(files)
    looks = [it.news()[0]]
    while it.behind:
        looks.append(it.news()[0])
    found = [point for look in looks for point in look]
    assert len(looks) > 3
    assert points(found) == [{"step": step} for step in range(200)]
    assert it.news() == ([], [])
    it.close()
