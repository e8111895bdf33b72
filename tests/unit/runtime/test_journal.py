"""The journal: whole lines, whatever happens to the one who writes them."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from longboat.runtime import journal
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.driver.history import look_back


def writer(path: Path, **more: object) -> journal.JournalWriter:
    return journal.JournalWriter(str(path), clock=lambda: 12.3456789, **more)  # type: ignore[arg-type]


def test_events_are_numbered_lines_of_json_without_their_empty_parts(tmp_path: Path) -> None:
    it = writer(tmp_path)
    it.write("run.started", run="demo-babab", resumed=None)
    it.write("note", text="ü \udcff\n")
    it.close()
    first, second = (tmp_path / "events.jsonl").read_bytes().splitlines()
    assert json.loads(first) == {"t": 12.345679, "n": 1, "ev": "run.started", "run": "demo-babab"}
    assert json.loads(second)["n"] == 2
    assert sorted(os.listdir(tmp_path)) == ["events.jsonl"], "the reserve is given back"


def test_a_cause_survives_the_journal(tmp_path: Path) -> None:
    cause = Cause(CauseKind.USER_ERROR, "no", "train", "worker", 0, exit_code=0, lines=("a", "b"), evidence=("c",))
    it = writer(tmp_path)
    it.write("run.ended", state="failed", code=1, cause=cause)
    it.close()
    (event,) = journal.read(str(tmp_path))
    assert journal.cause_of(event) == cause
    assert "frame" not in event["cause"]


def test_a_cause_of_another_version_is_read_leniently() -> None:
    cause = journal.cause_of({"cause": {"kind": "eaten_by_bears", "bears": 3}})
    assert cause is not None
    assert cause.kind is CauseKind.INTERNAL
    assert journal.cause_of({}) is None
    assert journal.cause_of({"cause": "text"}) is None


def test_secrets_are_hidden_also_when_json_writes_them_otherwise(tmp_path: Path) -> None:
    it = writer(tmp_path, redact=('pass"word\\', "plain", "", "ümlaut"))
    it.write("note", text='pass"word\\ and plain and ümlaut')
    it.close()
    assert journal.read(str(tmp_path))[0]["text"] == "*** and *** and ***"


def test_a_secret_is_hidden_in_texts_at_any_depth_and_the_longest_first(tmp_path: Path) -> None:
    it = writer(tmp_path, redact=("abcd", "abcdef"))
    cause = Cause(CauseKind.USER_ERROR, "m abcdef", error="e abcd", lines=("l abcdef",))
    it.write("run.ended", cause=cause, points=[{"step": 1, "who": "abcd"}])
    it.close()
    assert b"abcd" not in (tmp_path / "events.jsonl").read_bytes()
    (event,) = journal.read(str(tmp_path))
    assert journal.cause_of(event) == Cause(CauseKind.USER_ERROR, "m ***", error="e ***", lines=("l ***",))


@pytest.mark.parametrize("secret", ["1", "12.3", '"', "note", "train", "failed", "text", "step"])
def test_no_secret_costs_the_journal_its_form(tmp_path: Path, secret: str) -> None:
    it = writer(tmp_path, redact=(secret,))
    it.write("note", stage="train", level="info", text="x")
    it.write("rank.report", stage="train", role="worker", rank=1, points=[{"t": 12.3, "step": 1}])
    it.write("run.ended", state="failed", code=1)
    it.close()
    assert journal.read(str(tmp_path)) == [
        {"t": 12.345679, "n": 1, "ev": "note", "stage": "train", "level": "info", "text": "x"},
        {
            "t": 12.345679,
            "n": 2,
            "ev": "rank.report",
            "stage": "train",
            "role": "worker",
            "rank": 1,
            "points": [{"t": 12.3, "step": 1}],
        },
        {"t": 12.345679, "n": 3, "ev": "run.ended", "state": "failed", "code": 1},
    ]


def test_a_journal_is_looked_back_on_and_continued_without_holding_it(tmp_path: Path) -> None:
    it = writer(tmp_path)
    it.write("stage.started", stage="train", attempt=1)
    for step in range(20_000):
        it.write("rank.report", stage="train", points=[{"step": step, "loss": step / 2, "note": "x" * 200}])
    it.close()
    tracemalloc.start()
    try:
        before = look_back(journal.stream(str(tmp_path)))
        again = writer(tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (before.metrics.values, before.last) == ({"train": {"loss": 9999.5}}, "rank.report")
    assert again.write("note")["n"] == 20_002
    again.close()
    assert peak < (tmp_path / "events.jsonl").stat().st_size / 3


def test_half_a_line_is_not_an_event_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    reader = journal.JournalReader(str(tmp_path))
    assert list(reader.poll()) == []
    path.write_bytes(b'{"ev":"a"}\n{"ev"')
    assert list(reader.poll()) == [{"ev": "a"}]
    with open(path, "ab") as file:
        file.write(b':"b"}\n')
    assert list(reader.poll()) == [{"ev": "b"}]
    reader.close()


def test_lines_that_are_no_events_are_skipped(tmp_path: Path) -> None:
    deep = b"[" * 100_000 + b"\n"
    (tmp_path / "events.jsonl").write_bytes(deep + b'nonsense\n[1]\n{"no":"ev"}\n{"ev":5}\n{"ev":"good"}\n')
    assert journal.read(str(tmp_path)) == [{"ev": "good"}]


def test_a_time_that_no_clock_shows_is_left_out(tmp_path: Path) -> None:
    lines = [f'{{"ev":"x","t":{t}}}\n' for t in ("NaN", "1e308", '"noon"', "null", "-1", "1.5")]
    (tmp_path / "events.jsonl").write_text("".join(lines))
    assert journal.read(str(tmp_path)) == [{"ev": "x"}] * 5 + [{"ev": "x", "t": 1.5}]


def test_a_new_writer_cuts_off_half_a_line_and_counts_on(tmp_path: Path) -> None:
    it = writer(tmp_path)
    it.write("a")
    it.write("b")
    it.close()
    with open(tmp_path / "events.jsonl", "ab") as file:
        file.write(b'{"t":1,"n":3,"ev":"ha')
    again = writer(tmp_path)
    again.write("c")
    again.close()
    assert [(event["n"], event["ev"]) for event in journal.read(str(tmp_path))] == [(1, "a"), (2, "b"), (3, "c")]


def test_a_full_disk_leaves_whole_lines_and_room_for_the_last_words(tmp_path: Path) -> None:
    """The limit of a file's size stands in for the disk: writing beyond it fails in the middle of a line."""
    limit = 10_000
    script = f"""
import signal, sys
sys.path[:0] = {sys.path!r}
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
import errno, os, resource
from longboat.runtime import journal
it = journal.JournalWriter({str(tmp_path)!r})
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))
real = os.write
def write(fd, data):
    try:
        return real(fd, data)
    except OSError as error:
        raise OSError(errno.ENOSPC, "full") if error.errno == errno.EFBIG else error
journal.os.write = write
try:
    while not it.full:
        it.write("note", text="x" * 300)
except journal.JournalFull:
    pass
except OSError as error:
    assert error.errno == errno.ENOSPC
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
reserve = os.path.join({str(tmp_path)!r}, journal.RESERVE)
assert os.path.getsize(reserve) == journal.LAST_BYTES, "the reserve was given up, but for the last words"
it.write("run.ended", state="failed")
"""
    assert resource.RLIMIT_FSIZE is not None
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "events.jsonl").read_bytes().splitlines()
    events = [json.loads(line) for line in lines]
    assert events[-1]["ev"] == "run.ended"
    assert [event["n"] for event in events] == list(range(1, len(events) + 1))


class Disk:
    """Stands in for one that is full: only what this writer keeps in reserve can be had."""

    def __init__(self, reserve: Path) -> None:
        self._reserve, self._write = reserve, os.write

    def write(self, fd: int, data: bytes) -> int:
        if self._reserve.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._write(fd, data)


def test_a_reserve_that_somebody_else_takes_makes_the_journal_full_and_leaves_room_for_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = writer(tmp_path)
    it.write("run.started")
    monkeypatch.setattr(os, "write", Disk(tmp_path / journal.RESERVE).write)
    for _ in range(2):
        with pytest.raises(journal.JournalFull):
            it.write("note", text="more")
    it.write("run.ended", state="failed")
    it.close()
    events = journal.read(str(tmp_path))
    assert [(event["n"], event["ev"]) for event in events] == [(1, "run.started"), (2, "run.ended")]


def test_an_end_that_finds_no_room_at_all_is_a_full_journal_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = writer(tmp_path)

    def full(_fd: int, _data: bytes) -> int:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(journal.JournalFull):
        it.write("run.ended", state="failed")
    it.close()


def test_two_events_never_share_a_line(tmp_path: Path) -> None:
    it = writer(tmp_path)
    it.write("note", text="a\nb\r\nc\u2028d")
    it.close()
    assert (tmp_path / "events.jsonl").read_bytes().count(b"\n") == 1


def test_an_event_may_not_smuggle_in_values_that_json_does_not_have(tmp_path: Path) -> None:
    it = writer(tmp_path)
    with pytest.raises(TypeError):
        it.write("note", text=object())
    it.write("note", text="fine")
    it.close()
    assert [event["n"] for event in journal.read(str(tmp_path))] == [1]


def test_events_that_a_resumed_run_needs_are_flushed_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(os, "fdatasync", lambda _: flushed.append(journal.last(str(tmp_path))["ev"]))
    it = writer(tmp_path)
    for ev in ("run.started", "gen.started", "rank.report", "checkpoint", "checkpoint.damaged", "verdict", "run.ended"):
        it.write(ev)
    it.close()
    assert flushed == ["gen.started", "checkpoint", "checkpoint.damaged", "verdict", "run.ended"]


@pytest.mark.parametrize(("number", "full"), [(errno.ENOSPC, True), (errno.EINVAL, False)])
def test_a_flush_that_fails_is_a_full_disk_or_a_file_system_that_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, full: bool
) -> None:
    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fdatasync", fail)
    it = writer(tmp_path)
    it.write("checkpoint")
    assert it.full is full
    it.close()
