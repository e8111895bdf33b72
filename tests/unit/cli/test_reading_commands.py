"""status, why, logs, ls, cat, cp, rm and prune on runs written by the real journal."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from longboat.cli.console import Console
from longboat.cli.main import main
from longboat.runtime import plan, run_layout
from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import replace
from longboat.runtime.plan import Mount
from tests.unit.cli.reading import New, err, failed, longboat, out


def test_status_without_runs_says_how_to_start_one(console: Console) -> None:
    assert main(["status"], console) == 0
    assert "longboat run job.yaml" in err(console)


def test_status_lists_all_runs_newest_first_even_one_that_died_at_birth(new_run: New, console: Console) -> None:
    stillborn = new_run("stillborn")
    (stillborn.dir / "events.jsonl").unlink()
    (stillborn.dir / "plan.json").unlink()
    os.utime(stillborn.dir, (5, 5))
    old, new = new_run(began=1000.0), new_run(began=2000.0)
    failed(old)
    new.start(0, 1)
    new.succeed(0, 1)
    assert main(["status"], console) == 0
    _, *rows = out(console).splitlines()
    assert [row.split()[:2] for row in rows] == [[new.id, "succeeded"], [old.id, "failed"], [stillborn.id, "lost"]]
    assert "ValueError: boom" in rows[1]


def test_status_lists_a_run_that_cannot_be_read_among_the_others(new_run: New, console: Console) -> None:
    good, bad = new_run(began=2000.0), new_run(began=1000.0)
    good.start(0, 1)
    good.succeed(0, 1)
    (bad.dir / "events.jsonl").unlink()
    (bad.dir / "events.jsonl").mkdir()
    os.utime(bad.dir, (5, 5))
    assert main(["status"], console) == 0
    _, *rows = out(console).splitlines()
    assert [row.split()[:2] for row in rows] == [[good.id, "succeeded"], [bad.id, "unreadable"]]


def test_status_of_a_run_shows_each_rank_with_exit_and_cause(new_run: New, console: Console) -> None:
    run = new_run()
    failed(run)
    assert main(["status", run.id], console) == 0
    rows = {line.split()[0]: line for line in out(console).splitlines() if line.startswith("train/")}
    assert "SIGKILL" in rows["train/worker-0"]
    assert "because worker-1 failed" in rows["train/worker-0"]
    assert "ValueError: boom" in rows["train/worker-1"]
    assert out(console).rstrip().splitlines()[-1] == f"  longboat run --resume {run.id}"


def test_status_puts_many_equal_ranks_into_one_row_unless_all_are_wanted(new_run: New, console: Console) -> None:
    run = new_run(train=200)
    run.start(*range(200))
    run.rank("rank.ended", 7, state="failed", code=3)
    run.driven()
    assert main(["status", run.id], console) == 0
    rows = [line for line in out(console).splitlines() if line.startswith("train/")]
    assert len(rows) == 2
    assert rows[0].startswith("train/worker-0..6,8..199 (199)")
    assert main(["status", run.id, "--all"], console) == 0
    assert out(console).count("train/worker-") == 202


def test_status_and_why_as_json_can_be_read(new_run: New, console: Console) -> None:
    run = new_run()
    failed(run)
    run.rank("rank.report", 0, points=[{"t": 1.0, "loss": "nan"}])
    main(["status", run.id, "--json"], console)
    found = json.loads(out(console), parse_constant=pytest.fail)
    assert found["stages"][0]["ranks"][1]["cause"]["error"] == "ValueError: boom"
    console.out.truncate(0)
    console.out.seek(0)
    main(["why", "--json"], console)
    assert json.loads(out(console))["cause"]["kind"] == "user_error"


def test_why_ends_with_the_next_command(new_run: New, console: Console) -> None:
    run = new_run()
    failed(run)
    assert main(["why"], console) == 0
    lines = out(console).splitlines()
    assert lines[0] == f"{run.id} failed: train/worker-1: the program failed: ValueError: boom"
    assert "stopped because of it: worker-0" in lines
    assert lines[-1] == f"  longboat run --resume {run.id}"


def test_logs_name_the_rank_and_the_stage_only_where_there_are_more(new_run: New, console: Console) -> None:
    one = new_run(began=1000.0)
    one.start(0)
    one.log(0, b"hello\nworld")
    main(["logs", one.id], console)
    assert out(console) == "[worker-0] hello\n[worker-0] world\n"
    two = new_run("two", train=1, check=1)
    two.start(0)
    two.log(0, b"hello\n", stage="check")
    main(["logs", two.id], console)
    assert out(console).endswith("[check/worker-0] hello\n")


def test_logs_of_which_no_line_is_asked_for_were_written_all_the_same(new_run: New, console: Console) -> None:
    run = new_run()
    run.log(0, b"one\n")
    main(["logs", run.id, "--tail", "0"], console)
    assert (out(console), err(console)) == ("", "no lines\n")


def test_logs_choose_by_rank_tail_and_grep_and_show_bars_in_their_last_state(new_run: New, console: Console) -> None:
    run = new_run()
    run.start(0, 1)
    run.log(0, b"zero\n")
    run.log(1, b"loss 3\n10%\r100%\nloss 2\xff\nloss 1\nend\n")
    main(["logs", "--rank", "1", "--tail", "4", "--grep", r"^loss \d|%"], console)
    assert out(console) == "[worker-1] 100%\n[worker-1] loss 2\ufffd\n[worker-1] loss 1\n"


def test_logs_of_a_stage_role_or_rank_that_is_not_there_name_what_is(new_run: New, console: Console) -> None:
    run = new_run()
    run.start(0, 1)
    with pytest.raises(LongboatError, match="no stage 'trian'") as error:
        main(["logs", "--stage", "trian"], console)
    assert error.value.hint == "did you mean train?"
    with pytest.raises(LongboatError, match="no rank 2") as error:
        main(["logs", "--rank", "2"], console)
    assert "0 to 1" in error.value.hint
    with pytest.raises(LongboatError, match="regular expression"):
        main(["logs", "--grep", "("], console)


def test_raw_logs_are_the_bytes_as_written(new_run: New, tmp_path: Path) -> None:
    run = new_run()
    run.start(0, 1)
    body = b"\xff\0 10%\r20%\r\n" * 100 + b"no newline"
    run.log(0, body)
    shown, _ = longboat(tmp_path, "logs", "--raw", "--rank", "0").communicate(timeout=30)
    assert shown == body


def test_following_logs_waits_for_ranks_and_ends_with_the_run(new_run: New, tmp_path: Path) -> None:
    run = new_run()
    run.driven()
    follower = longboat(tmp_path, "logs", "-f")
    assert follower.stdout is not None
    run.start(0, 1)
    run.log(0, b"first\n")
    assert follower.stdout.readline() == b"[worker-0] first\n"
    run.log(1, b"second\n")
    assert follower.stdout.readline() == b"[worker-1] second\n"
    run.log(0, b"last, without its newline")
    run.succeed(0, 1)
    run.undriven()
    rest, _ = follower.communicate(timeout=30)
    assert (rest, follower.returncode) == (b"[worker-0] last, without its newline\n", 0)


def test_following_logs_ends_when_the_driver_is_gone(new_run: New, tmp_path: Path) -> None:
    run = new_run()
    run.start(0, 1)
    run.driven()
    run.log(0, b"first\n")
    follower = longboat(tmp_path, "logs", "-f")
    assert follower.stdout is not None
    assert follower.stdout.readline() == b"[worker-0] first\n"
    run.undriven()
    follower.communicate(timeout=30)
    assert follower.returncode == 0


def test_ls_and_cat_show_files_of_the_run_and_nothing_else(new_run: New, console: Console, tmp_path: Path) -> None:
    run = new_run()
    run.start(0, 1)
    run.log(0, b"text\n")
    (tmp_path / "secret").write_text("secret")
    (run.dir / "link").symlink_to(tmp_path / "secret")
    main(["ls", run.id], console)
    assert "logs/train/worker-0.log" in out(console)
    main(["ls", f"{run.id}:logs/train"], console)
    main(["cat", f"{run.id}:logs/train/worker-0.log"], console)
    assert out(console).endswith("text\n")
    main(["cat", run.id, "logs/train/worker-0.log"], console)
    assert out(console).endswith("text\ntext\n")
    for path in ("../../secret", "link", "logs/../../../secret"):
        with pytest.raises(LongboatError, match="is outside of the run"):
            main(["cat", f"{run.id}:{path}"], console)
    with pytest.raises(LongboatError, match="has no") as error:
        main(["cat", f"{run.id}:plan.jsn"], console)
    assert error.value.hint == f"did you mean {run.id}:plan.json?"


def stored(run: Any, tmp_path: Path) -> Path:
    """The run's job has storage of its own, storage on this machine, and some that may only be read."""
    shared = tmp_path / "shared"
    shared.mkdir()
    mounts = (Mount("notes", "pvc"), Mount("output", "path", path=str(shared)), Mount("data", "path", read_only=True))
    (run.dir / run_layout.PLAN).write_text(plan.to_json(replace(run.plan, storage=mounts)))
    (run.dir / "storage" / "notes").mkdir(parents=True)
    (run.dir / "output" / "train").mkdir(parents=True)
    return shared


def test_cp_copies_files_and_trees_out_of_a_run_and_into_it(new_run: New, console: Console, tmp_path: Path) -> None:
    run = new_run()
    shared = stored(run, tmp_path)
    (shared / "there").write_bytes(b"shared")
    run.log(0, b"one\0two")
    main(["cp", f"{run.id}:logs/train/worker-0.log", str(tmp_path)], console)
    assert (tmp_path / "worker-0.log").read_bytes() == b"one\0two"
    main(["cp", f"{run.id}:logs", str(tmp_path / "all")], console)
    assert (tmp_path / "all" / "train" / "worker-0.log").read_bytes() == b"one\0two"
    assert out(console).splitlines() == [str(tmp_path / "worker-0.log"), str(tmp_path / "all")]
    main(["cp", str(tmp_path / "all"), f"{run.id}:notes/"], console)
    main(["cp", str(tmp_path / "worker-0.log"), f"{run.id}:output/train/given"], console)
    main(["cp", f"{run.id}:output/train/given", f"{run.id}:storage/output/again"], console)
    assert (run.dir / "storage/notes/all/train/worker-0.log").read_bytes() == b"one\0two"
    assert (run.dir / "output/train/given").read_bytes() == b"one\0two"
    assert (shared / "again").read_bytes() == b"one\0two"
    main(["ls", f"{run.id}:storage/output"], console)
    assert out(console).endswith("7 B  storage/output/again\n6 B  storage/output/there\n")
    main(["cat", f"{run.id}:notes/all/train/worker-0.log"], console)
    assert out(console).endswith("one\0two")


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (("{run}:logs/nothing", "."), "has no file logs/nothing"),
        (("{run}:storage/notes/nothing", "."), "has no file storage/notes/nothing"),
        (("nothing-here", "{run}:output/train/"), "nothing-here does not exist on this machine"),
        (("{run}:plan.json", "{run}:logs/plan"), "is part of the run's record"),
        (("{run}:plan.json", "{run}:data/"), "storage data is read-only"),
        (("{run}:plan.json", "{run}:storage/notes/../../../x"), "is outside of the run"),
        (("a", "b"), "neither path is in a run"),
    ],
)
def test_cp_refuses_what_cannot_be_copied_with_the_reason(
    new_run: New, console: Console, tmp_path: Path, words: tuple[str, str], wrong: str
) -> None:
    run = new_run()
    stored(run, tmp_path)
    with pytest.raises(LongboatError, match=wrong) as error:
        main(["cp", *(word.format(run=run.id) for word in words)], console)
    assert error.value.hint


def test_rm_names_what_it_removed_and_refuses_a_living_run(new_run: New, console: Console) -> None:
    gone, living = new_run("gone"), new_run("living")
    gone.start(0, 1)
    gone.succeed(0, 1)
    living.start(0, 1)
    living.driven()
    with pytest.raises(LongboatError, match=f"{living.id} is still running"):
        main(["rm", living.id, gone.id], console)
    assert out(console).startswith(f"removed {gone.id} (")
    assert living.dir.is_dir()
    assert not gone.dir.exists()


def test_what_rm_and_prune_removed_can_be_read_by_a_machine(new_run: New, console: Console) -> None:
    gone, living, old = new_run("gone"), new_run("living"), new_run("old")
    for run in (gone, living, old):
        run.start(0, 1)
    living.driven()
    gone.succeed(0, 1)
    old.succeed(0, 1)
    with pytest.raises(LongboatError, match="nosuch"):
        main(["rm", "--json", living.id, "nosuch", gone.id], console)
    told = json.loads(out(console))
    assert [each["what"] for each in told["refused"]] == [living.id, "nosuch"]
    assert [each["what"] for each in told["removed"]] == [gone.id]
    assert told["removed"][0]["bytes"] > 0
    assert told["kept"] == []
    before = len(out(console))
    main(["prune", "--json", "--keep", "0"], console)
    assert [each["what"] for each in json.loads(out(console)[before:])["removed"]] == [old.id]


def test_prune_removes_old_runs_but_never_a_living_or_a_kept_one(new_run: New, console: Console) -> None:
    now = time.time()
    living, old, kept = (
        new_run("living", began=now - 9e5),
        new_run("old", began=now - 8e5),
        new_run("kept", began=now - 7e5),
    )
    for run in (living, old, kept):
        run.start(0, 1)
    living.driven()
    old.succeed(0, 1)
    kept.succeed(0, 1)
    main(["prune", "--older-than", "7d", "--keep", "1", "--dry-run"], console)
    assert out(console).startswith(f"would remove {old.id} (")
    assert old.dir.exists()
    main(["prune", "--older-than", "7d", "--keep", "1"], console)
    assert [run.dir.exists() for run in (living, old, kept)] == [True, False, True]
    with pytest.raises(LongboatError, match="no runs were chosen"):
        main(["prune"], console)
