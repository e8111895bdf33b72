from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from longboat.runs import logs
from longboat.runs.logs import LogFilter, LogFollower, LogSource, beginning
from longboat.runtime import journal

New = Callable[..., Any]

W0, W1 = LogSource("train", "worker", 0), LogSource("train", "worker", 1)


def text_of(pieces: Any, source: LogSource = W0) -> bytes:
    return b"".join(piece.data for piece in pieces if piece.source == source)


def test_every_line_comes_once_and_in_order_whatever_its_bytes(new_run: New) -> None:
    run = new_run()
    body = (
        b"\xff\xfe bad\nnul \0 inside\n\n" + b"x" * (10 << 20) + b"\n" + b"".join(b"%d\n" % i for i in range(200_000))
    )
    run.log(0, body + b"no newline at the end")
    run.log(1, b"other\n")
    pieces = list(logs.read(run.dir))
    assert text_of(pieces) == body + b"no newline at the end\n"
    assert text_of(pieces, W1) == b"other\n"


def test_lines_of_many_ranks_come_rank_by_rank_in_the_plans_order(new_run: New) -> None:
    run = new_run(train=11, check=1)
    for rank in (10, 2):
        run.log(rank, b"a\nb\n")
    run.log(0, b"c\n", stage="check")
    found = [(line.stage, line.rank, line.text) for line in logs.lines(logs.read(run.dir, order=("train", "check")))]
    assert found == [
        ("train", 2, b"a"),
        ("train", 2, b"b"),
        ("train", 10, b"a"),
        ("train", 10, b"b"),
        ("check", 0, b"c"),
    ]


def test_a_choice_takes_only_what_it_names(new_run: New) -> None:
    run = new_run(train=3)
    for rank in range(3):
        run.log(rank, b"x\n")
    assert {piece.source.rank for piece in logs.read(run.dir, LogFilter(ranks=(0, 2)))} == {0, 2}


def test_the_tail_is_found_from_behind(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = [b"%d" % i * (i % 50) for i in range(20_000)]
    for end in (b"", b"\n"):
        path.write_bytes(b"\n".join(lines) + end)
        for count in (0, 1, 3, 5000, 20_000, 30_000):
            wanted = b"\n".join(lines[len(lines) - min(count, len(lines)) :]) + end if count else b""
            assert path.read_bytes()[logs.tail_offset(path, count) :] == wanted


def test_a_redrawn_line_settles_to_its_last_state() -> None:
    assert logs.settled(b"10%\r50%\r100%\nplain\ndos\r\nback\r\r") == b"100%\nplain\ndos\nback"


def test_following_covers_growth_new_ranks_and_ends_drained(new_run: New) -> None:
    run = new_run()
    looks = 0

    def over() -> bool:
        nonlocal looks
        looks += 1
        if looks == 2:
            run.log(0, b"one\ntw")
        if looks == 3:
            run.log(0, b"o\n")
            run.log(1, b"late rank\n")
        if looks == 4:
            run.log(0, b"the end")
        return looks == 4

    pieces = list(logs.follow(LogFollower(run.dir), over, pause=0))
    assert [piece.data for piece in pieces if piece.source == W0] == [b"one\n", b"two\n", b"the end\n"]
    assert text_of(pieces, W1) == b"late rank\n"


def test_a_noisy_rank_does_not_starve_a_quiet_one(new_run: New) -> None:
    run = new_run(train=12)
    for rank in range(11):
        run.log(rank, b"noise\n" * (3 * logs.PIECE // 6))
    run.log(11, b"quiet\n")
    follower = LogFollower(run.dir)
    first, second = list(follower.poll()), list(follower.poll())
    assert follower.behind
    assert 11 in {piece.source.rank for piece in first + second}


def test_a_bar_that_never_ends_its_line_stays_small_in_memory(new_run: New) -> None:
    run = new_run()
    follower = LogFollower(run.dir)
    for step in range(40):
        run.log(0, b"".join(b"\r%d/400000" % (step * 10_000 + i) for i in range(10_000)))
        assert list(follower.poll()) == []
    run.log(0, b"\rdone\n")
    data = text_of(follower.poll())
    assert logs.settled(data) == b"done\n"
    assert len(data) < 400_000


def test_lines_written_while_being_followed_are_neither_lost_nor_doubled(new_run: New) -> None:
    run = new_run()
    done = threading.Event()

    def write() -> None:
        for first in range(0, 50_000, 7):
            run.log(0, b"".join(b"line %d\n" % i for i in range(first, min(first + 7, 50_000))))
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    found = text_of(logs.follow(LogFollower(run.dir), done.is_set, pause=0))
    writer.join()
    assert found == b"".join(b"line %d\n" % i for i in range(50_000))


def test_since_begins_at_the_process_that_was_running_then(new_run: New) -> None:
    run = new_run(train=3)
    run.now = 100.0
    run.rank("rank.started", 0, log_offset=0)  # at 101
    run.rank("rank.started", 1, log_offset=0)
    run.rank("rank.ended", 1, state="failed")
    run.rank("rank.started", 2, log_offset=0)
    run.rank("rank.ended", 2, state="succeeded")
    run.rank("rank.started", 1, gen=2, log_offset=40)  # at 106
    where = logs.since_offsets(journal.read(str(run.dir)), 105.5)
    assert where(W0) == 0
    assert where(W1) == 40
    assert where(LogSource("train", "worker", 2)) is None
    assert where(LogSource("train", "launcher", 0)) == 0


def test_tail_and_since_begin_at_the_later_place(new_run: New) -> None:
    run = new_run()
    run.log(0, b"old\nnew 1\nnew 2\n")
    place = logs.path_of(run.dir, W0)
    assert beginning(2, lambda _: 10)(W0, place) == 10
    assert beginning(1, lambda _: 4)(W0, place) == 10
    assert beginning(1, lambda _: None)(W0, place) is None
