"""Event files that Longboat writes, read by TensorBoard's own reader."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from longboat.runtime import tensorboard


def read(directory: Path) -> Any:
    found = EventAccumulator(str(directory), size_guidance={"tensors": 0})
    found.Reload()
    return found


def numbers(directory: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.tensor_proto.float_val[0]) for event in read(directory).Tensors(tag)]


def test_scalars_come_back_with_their_steps_and_values(tmp_path: Path) -> None:
    writer = tensorboard.Writer(str(tmp_path))
    written = [(1, 0.5), (2, -1e-30), (300, 3e38), (2**40, 0.0)]
    for step, value in written:
        writer.scalar("größe/loss", value, step)
    writer.close()
    assert numbers(tmp_path, "größe/loss") == [pytest.approx(point) for point in written]


def test_numbers_that_are_none_or_too_large_are_told_as_such(tmp_path: Path) -> None:
    writer = tensorboard.Writer(str(tmp_path))
    for step, value in enumerate((math.nan, math.inf, -1e300)):
        writer.scalar("loss", value, step)
    found = [value for _, value in numbers(tmp_path, "loss")]
    assert math.isnan(found[0])
    assert found[1:] == [math.inf, -math.inf]


def test_a_histogram_counts_every_value_between_the_smallest_and_the_largest(tmp_path: Path) -> None:
    writer = tensorboard.Writer(str(tmp_path))
    writer.histogram("weights", [0.0, 0.15, 0.15, 3.0], 7)
    (event,) = read(tmp_path).Tensors("weights")
    assert event.step == 7
    filled = [(left, right, count) for left, right, count in make_ndarray(event.tensor_proto).tolist() if count]
    assert [count for *_, count in filled] == [1, 2, 1]
    assert filled[0][0] == 0.0
    assert filled[1][0] <= 0.15 <= filled[1][1]
    assert filled[-1][1] == 3.0


@pytest.mark.parametrize("values", [[], [2.5], [1.0, 1.0], [0.0, math.inf]])
def test_a_histogram_of_few_or_equal_values_can_be_read(values: list[float], tmp_path: Path) -> None:
    writer = tensorboard.Writer(str(tmp_path))
    writer.histogram("weights", values, 1)
    assert [event.step for event in read(tmp_path).Tensors("weights")] == [1]


def test_what_is_computed_again_after_a_resume_replaces_what_was_told_before(tmp_path: Path) -> None:
    first = tensorboard.Writer(str(tmp_path))
    for step in (1, 2, 3, 4):
        first.scalar("loss", step, step)
    second = tensorboard.Writer(str(tmp_path), resume_step=2)
    for step in (3, 4, 5):
        second.scalar("loss", 10 * step, step)
    assert numbers(tmp_path, "loss") == [(1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0), (5, 50.0)]


def test_a_record_is_on_disk_when_the_call_returns_and_a_torn_one_hides_no_other(tmp_path: Path) -> None:
    writer = tensorboard.Writer(str(tmp_path))
    writer.scalar("loss", 1, 1)
    writer.scalar("loss", 2, 2)
    path = Path(writer.path)
    path.write_bytes(path.read_bytes()[:-3])
    steps = [event.step for event in EventFileLoader(str(path)).Load() if event.HasField("summary")]
    assert steps == [1]
