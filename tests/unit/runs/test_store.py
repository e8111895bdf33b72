from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longboat.runs.store import REMOVING, Store, alive
from longboat.runtime.errors import LongboatError

New = Callable[..., Any]


def test_a_new_run_is_a_private_directory_named_by_job_and_a_sayable_word(tmp_path: Path) -> None:
    run = Store(tmp_path / "home").create("wide-deep")
    assert re.fullmatch(r"wide-deep-([b-z][aiou]){2}[b-z]", run.name)
    assert run.stat().st_mode & 0o777 == 0o700


def test_a_place_that_cannot_hold_runs_is_named_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(LongboatError, match=r"home/runs: Not a directory|home/runs: File exists") as error:
        Store(tmp_path / "home").create("demo")
    assert "LONGBOAT_HOME" in error.value.hint


def test_ids_come_newest_first_by_their_first_event(new_run: New, tmp_path: Path) -> None:
    old, new = new_run(began=1000.0), new_run(began=2000.0)
    new.start(0)
    old.start(0)
    assert Store(tmp_path).ids() == [new.id, old.id]


def test_a_run_is_found_by_id_prefix_last_part_or_job_name(new_run: New, tmp_path: Path) -> None:
    old, new, other = new_run(began=1000.0), new_run(began=2000.0), new_run("mnist", began=1500.0)
    for run in (old, new, other):
        run.start(0)
    store = Store(tmp_path)
    assert store.find(old.id) == old.dir
    assert store.find("mn") == other.dir
    assert store.find(other.id.rpartition("-")[2]) == other.dir
    assert store.find("demo") == new.dir
    assert store.find(None) == new.dir


def test_an_ambiguous_beginning_lists_what_it_may_mean(tmp_path: Path) -> None:
    for name in ("demo-babab", "demo-babad"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    with pytest.raises(LongboatError, match=r"demo-babab.*demo-babad|demo-babad.*demo-babab"):
        Store(tmp_path).find("demo-ba")


def test_an_unknown_run_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "runs" / "demo-babab").mkdir(parents=True)
    with pytest.raises(LongboatError) as error:
        Store(tmp_path).find("demo-babax")
    assert error.value.hint == "did you mean demo-babab?"


def test_without_runs_the_way_to_one_is_told(tmp_path: Path) -> None:
    with pytest.raises(LongboatError, match="no runs") as error:
        Store(tmp_path).find()
    assert "longboat run" in error.value.hint


def test_alive_asks_after_the_lock_and_leaves_it_alone(new_run: New) -> None:
    run = new_run()
    assert not alive(run.dir)
    run.driven()
    assert alive(run.dir)
    assert alive(run.dir)
    run.undriven()
    assert not alive(run.dir)


def test_a_living_run_is_not_removed(new_run: New, tmp_path: Path) -> None:
    run = new_run()
    run.driven()
    with pytest.raises(LongboatError, match="still running") as error:
        Store(tmp_path).remove(run.dir)
    assert f"longboat stop {run.id}" in error.value.hint
    assert run.dir.is_dir()


def test_removing_leaves_nothing_and_sweeps_what_an_earlier_removal_left(new_run: New, tmp_path: Path) -> None:
    run = new_run()
    run.log(0, b"text\n")
    left = tmp_path / "runs" / f"{REMOVING}demo-babab-1"
    (left / "logs").mkdir(parents=True)
    assert Store(tmp_path).ids() == [run.id]
    Store(tmp_path).remove(run.dir)
    assert os.listdir(tmp_path / "runs") == []


def test_a_directory_that_a_rank_made_read_only_is_removed_too(new_run: New, tmp_path: Path) -> None:
    run = new_run()
    run.log(0, b"text\n")
    (run.dir / "logs" / "train").chmod(0o500)
    Store(tmp_path).remove(run.dir)
    assert os.listdir(tmp_path / "runs") == []
