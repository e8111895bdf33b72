"""A run's journal as event files: exact, in any number of sittings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

from longboat.runtime import journal, run_layout
from longboat.runtime.driver.tensorboard_export import DIRECTORY, EVENTS, TensorBoardExport
from longboat.runtime.errors import LongboatError

SEAT = {"stage": "train", "role": "worker", "rank": 0, "gen": 1}


def point(step: int, loss: float | str, **more: float) -> dict[str, Any]:
    return {"t": 1000.0 + step, "step": step, "total": 9, "loss": loss, **more}


def curve(run: Path, place: str = "train/worker-0", tag: str = "loss") -> list[tuple[int, float]]:
    found = EventAccumulator(str(run / DIRECTORY / place))
    found.Reload()
    return [(event.step, event.tensor_proto.float_val[0]) for event in found.Tensors(tag)]


def look(run: Path) -> None:
    board = TensorBoardExport(run)
    board.poll()
    board.close()


@pytest.fixture
def writer(tmp_path: Path) -> journal.JournalWriter:
    return journal.JournalWriter(str(tmp_path), clock=lambda: 5.0)


def test_reports_become_curves_of_their_rank_while_the_run_goes_on(
    tmp_path: Path, writer: journal.JournalWriter
) -> None:
    board = TensorBoardExport(tmp_path)
    board.poll()
    writer.write("rank.report", **SEAT, points=[point(1, 0.5, accuracy=0.25), point(2, 0.25)])
    writer.write("rank.report", **{**SEAT, "rank": 1}, points=[point(1, 4.0)])
    board.poll()
    assert curve(tmp_path) == [(1, 0.5), (2, 0.25)]
    assert curve(tmp_path, tag="accuracy") == [(1, 0.25)]
    assert curve(tmp_path, "train/worker-1") == [(1, 4.0)]
    writer.write("rank.report", **SEAT, points=[point(3, "nan"), point(4, 0.125)])
    board.poll()
    assert [step for step, _ in curve(tmp_path)] == [1, 2, 3, 4]
    assert not any(name in ("t", "total", "step") for name in _tags(tmp_path))


def _tags(run: Path) -> list[str]:
    found = EventAccumulator(str(run / DIRECTORY / "train/worker-0"))
    found.Reload()
    tags: list[str] = found.Tags()["tensors"]
    return tags


def test_a_second_sitting_goes_on_where_the_first_was_torn(tmp_path: Path, writer: journal.JournalWriter) -> None:
    for step in range(1, 5):
        writer.write("rank.report", **SEAT, points=[point(step, 1 / step)])
    look(tmp_path)
    path = tmp_path / DIRECTORY / "train/worker-0" / EVENTS
    whole = path.read_bytes()
    for kept in (0, 10, len(whole) // 2, len(whole) - 1, len(whole)):
        path.write_bytes(whole[:kept])
        look(tmp_path)
        assert path.read_bytes() == whole
    path.write_bytes(b"of another version" + whole)
    look(tmp_path)
    assert path.read_bytes() == whole


def test_one_viewer_writes_and_the_next_takes_over_when_it_has_gone(
    tmp_path: Path, writer: journal.JournalWriter
) -> None:
    first, second = TensorBoardExport(tmp_path), TensorBoardExport(tmp_path)
    writer.write("rank.report", **SEAT, points=[point(1, 1.0)])
    first.poll()
    second.poll()
    writer.write("rank.report", **SEAT, points=[point(2, 2.0)])
    second.poll()
    assert curve(tmp_path) == [(1, 1.0)]
    first.close()
    second.poll()
    assert curve(tmp_path) == [(1, 1.0), (2, 2.0)]


def test_steps_that_a_new_life_computes_again_are_told_once(tmp_path: Path, writer: journal.JournalWriter) -> None:
    writer.write("rank.started", **SEAT)
    writer.write("rank.report", **SEAT, points=[point(step, float(step)) for step in (1, 2, 3, 4)])
    writer.write("rank.started", **{**SEAT, "gen": 2})
    writer.write("rank.report", **{**SEAT, "gen": 2}, points=[point(step, 10.0 * step) for step in (3, 4, 5)])
    look(tmp_path)
    assert curve(tmp_path) == [(1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0), (5, 50.0)]


def test_each_round_has_a_curve_of_its_own(tmp_path: Path, writer: journal.JournalWriter) -> None:
    for turn in (1, 2):
        writer.write("gen.started", stage="train", gen=turn, round=turn)
        writer.write("rank.report", **SEAT, points=[point(1, float(turn))])
    look(tmp_path)
    assert curve(tmp_path, "train/worker-0/round-1") == [(1, 1.0)]
    assert curve(tmp_path, "train/worker-0/round-2") == [(1, 2.0)]


def test_reports_without_a_step_are_counted_and_nonsense_is_passed_over(
    tmp_path: Path, writer: journal.JournalWriter
) -> None:
    writer.write("rank.report", **SEAT, points=[{"t": 1.0, "loss": 1.0}, {"t": 2.0, "loss": 2.0}, {"t": 3.0}])
    writer.write("rank.report", **SEAT, points=[{"loss": None}])
    writer.write("rank.report", stage="train")
    writer.write("rank.report", **SEAT, points=[{"loss": 3.0}])
    look(tmp_path)
    assert curve(tmp_path) == [(0, 1.0), (1, 2.0), (2, 3.0)]


def test_what_a_stage_wrote_itself_is_beside_them(tmp_path: Path) -> None:
    output = Path(run_layout.output(str(tmp_path), "train"))
    output.mkdir(parents=True)
    (output / "mine").write_text("here")
    look(tmp_path)
    look(tmp_path)
    assert (tmp_path / DIRECTORY / "train/output/mine").read_text() == "here"


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, writer: journal.JournalWriter) -> None:
    writer.write("rank.report", **SEAT, points=[point(1, 1.0)])
    (tmp_path / DIRECTORY).mkdir()
    (tmp_path / DIRECTORY / "train").write_text("a file")
    with pytest.raises(LongboatError, match="cannot write TensorBoard files") as error:
        look(tmp_path)
    assert str(tmp_path / DIRECTORY) in str(error.value.hint)
