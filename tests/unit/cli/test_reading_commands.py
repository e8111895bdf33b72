"""status, why, logs, wait, attach, ls, cat, rm and prune on runs written by the real journal."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from windlass import api, layout, plan
from windlass.causes import Cause, Kind
from windlass.cli import exec_command
from windlass.cli.main import main
from windlass.cli.world import World
from windlass.errors import WindlassError
from windlass.plan import Mount

New = Callable[..., Any]

BOOM = Cause(Kind.USER_ERROR, "exit code 1", "train", "worker", 1, 1, exit_code=1, error="ValueError: boom")


def out(world: World) -> str:
    text: str = world.out.getvalue()  # type: ignore[attr-defined]
    return text


def err(world: World) -> str:
    text: str = world.err.getvalue()  # type: ignore[attr-defined]
    return text


def failed(run: Any) -> None:
    run.start(0, 1)
    run.rank("rank.ended", 1, state="failed", code=1, cause=BOOM)
    run.rank("rank.ended", 0, state="killed", signal=9, because="worker-1")
    run.event("stage.ended", stage="train", state="failed", cause=BOOM)
    run.event("run.ended", state="failed", code=1, cause=BOOM)


def test_status_without_runs_says_how_to_start_one(world: World) -> None:
    assert main(["status"], world) == 0
    assert "windlass run job.yaml" in err(world)


def test_status_lists_all_runs_newest_first_even_one_that_died_at_birth(new_run: New, world: World) -> None:
    stillborn = new_run("stillborn")
    (stillborn.dir / "events.jsonl").unlink()
    (stillborn.dir / "plan.json").unlink()
    os.utime(stillborn.dir, (5, 5))
    old, new = new_run(began=1000.0), new_run(began=2000.0)
    failed(old)
    new.start(0, 1)
    new.succeed(0, 1)
    assert main(["status"], world) == 0
    _, *rows = out(world).splitlines()
    assert [row.split()[:2] for row in rows] == [[new.id, "succeeded"], [old.id, "failed"], [stillborn.id, "lost"]]
    assert "ValueError: boom" in rows[1]


def test_status_of_a_run_shows_each_rank_with_exit_and_cause(new_run: New, world: World) -> None:
    run = new_run()
    failed(run)
    assert main(["status", run.id], world) == 0
    rows = {line.split()[0]: line for line in out(world).splitlines() if line.startswith("train/")}
    assert "SIGKILL" in rows["train/worker-0"]
    assert "because worker-1 fell" in rows["train/worker-0"]
    assert "ValueError: boom" in rows["train/worker-1"]
    assert out(world).rstrip().splitlines()[-1] == f"  windlass run --resume {run.id}"


def test_status_puts_many_equal_ranks_into_one_row_unless_all_are_wanted(new_run: New, world: World) -> None:
    run = new_run(train=200)
    run.start(*range(200))
    run.rank("rank.ended", 7, state="failed", code=3)
    run.driven()
    assert main(["status", run.id], world) == 0
    rows = [line for line in out(world).splitlines() if line.startswith("train/")]
    assert len(rows) == 2
    assert rows[0].startswith("train/worker-0..6,8..199 (199)")
    assert main(["status", run.id, "--all"], world) == 0
    assert out(world).count("train/worker-") == 202


def test_status_and_why_as_json_can_be_read(new_run: New, world: World) -> None:
    run = new_run()
    failed(run)
    run.rank("rank.report", 0, points=[{"t": 1.0, "loss": "nan"}])
    main(["status", run.id, "--json"], world)
    found = json.loads(out(world), parse_constant=pytest.fail)
    assert found["stages"][0]["ranks"][1]["cause"]["error"] == "ValueError: boom"
    world.out.truncate(0)
    world.out.seek(0)
    main(["why", "--json"], world)
    assert json.loads(out(world))["cause"]["kind"] == "user_error"


def test_why_ends_with_the_next_command(new_run: New, world: World) -> None:
    run = new_run()
    failed(run)
    assert main(["why"], world) == 0
    lines = out(world).splitlines()
    assert lines[0] == f"{run.id} failed: train/worker-1: the program failed: ValueError: boom"
    assert "fell because of it: worker-0" in lines
    assert lines[-1] == f"  windlass run --resume {run.id}"


def test_logs_name_the_rank_and_the_stage_only_where_there_are_more(new_run: New, world: World) -> None:
    one = new_run(began=1000.0)
    one.start(0)
    one.log(0, b"hello\nworld")
    main(["logs", one.id], world)
    assert out(world) == "[worker-0] hello\n[worker-0] world\n"
    two = new_run("two", train=1, check=1)
    two.start(0)
    two.log(0, b"hello\n", stage="check")
    main(["logs", two.id], world)
    assert out(world).endswith("[check/worker-0] hello\n")


def test_logs_of_which_no_line_is_asked_for_were_written_all_the_same(new_run: New, world: World) -> None:
    run = new_run()
    run.log(0, b"one\n")
    main(["logs", run.id, "--tail", "0"], world)
    assert (out(world), err(world)) == ("", "no lines\n")


def test_logs_choose_by_rank_tail_and_grep_and_show_bars_in_their_last_state(new_run: New, world: World) -> None:
    run = new_run()
    run.start(0, 1)
    run.log(0, b"zero\n")
    run.log(1, b"loss 3\n10%\r100%\nloss 2\xff\nloss 1\nend\n")
    main(["logs", "--rank", "1", "--tail", "4", "--grep", r"^loss \d|%"], world)
    assert out(world) == "[worker-1] 100%\n[worker-1] loss 2\ufffd\n[worker-1] loss 1\n"


def test_logs_of_a_stage_role_or_rank_that_is_not_there_name_what_is(new_run: New, world: World) -> None:
    run = new_run()
    run.start(0, 1)
    with pytest.raises(WindlassError, match="no stage 'trian'") as error:
        main(["logs", "--stage", "trian"], world)
    assert error.value.hint == "did you mean train?"
    with pytest.raises(WindlassError, match="no rank 2") as error:
        main(["logs", "--rank", "2"], world)
    assert "0 to 1" in error.value.hint
    with pytest.raises(WindlassError, match="regular expression"):
        main(["logs", "--grep", "("], world)


def windlass(home: Path, *args: str) -> subprocess.Popen[bytes]:
    environ = {**os.environ, "WINDLASS_HOME": str(home)}
    return subprocess.Popen(
        [sys.executable, "-m", "windlass", *args], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_raw_logs_are_the_bytes_as_written(new_run: New, tmp_path: Path) -> None:
    run = new_run()
    run.start(0, 1)
    body = b"\xff\0 10%\r20%\r\n" * 100 + b"no newline"
    run.log(0, body)
    shown, _ = windlass(tmp_path, "logs", "--raw", "--rank", "0").communicate(timeout=30)
    assert shown == body


def test_following_logs_waits_for_ranks_and_ends_with_the_run(new_run: New, tmp_path: Path) -> None:
    run = new_run()
    run.driven()
    follower = windlass(tmp_path, "logs", "-f")
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
    follower = windlass(tmp_path, "logs", "-f")
    assert follower.stdout is not None
    assert follower.stdout.readline() == b"[worker-0] first\n"
    run.undriven()
    follower.communicate(timeout=30)
    assert follower.returncode == 0


def test_wait_takes_over_the_exit_code_and_gives_up_in_time(new_run: New, world: World) -> None:
    run = new_run()
    run.start(0, 1)
    run.driven()
    assert main(["wait", "--timeout", "0s"], world) == 1
    assert "still running" in err(world)
    run.event("run.ended", state="gate_missed", code=3, cause=Cause(Kind.GATE_NOT_MET, "accuracy 0.5, asked for 0.7"))
    run.undriven()
    assert main(["wait", "--json"], world) == 3
    told = json.loads(out(world))
    assert (told["state"], told["code"], told["dir"]) == ("gate_missed", 3, str(run.dir))


class Hands:
    """A clock that moves when somebody sleeps; `then` is called when it has moved by so many seconds."""

    def __init__(self, after: float, then: Callable[[], None]) -> None:
        self.slept, self._after, self._then = 0.0, after, then

    def monotonic(self) -> float:
        return self.slept

    def sleep(self, seconds: float) -> None:
        before, self.slept = self.slept, self.slept + seconds
        if before < self._after <= self.slept:
            self._then()


@pytest.mark.parametrize("waits", [lambda run, _: api.Run(run.id).wait(), lambda _, world: main(["wait"], world)])
def test_who_has_waited_for_a_run_may_remove_it(
    new_run: New,
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    waits: Callable[[Any, World], object],
) -> None:
    """Its driver writes the end, and is gone a moment later."""
    run = new_run()
    run.driven()
    run.start(0, 1)
    run.succeed(0, 1)
    monkeypatch.setenv("WINDLASS_HOME", str(tmp_path))
    monkeypatch.setattr("windlass.runs.watch.time", Hands(1.0, run.undriven))
    waits(run, world)
    assert main(["rm", run.id], world) == 0


def test_a_driver_that_does_not_leave_is_waited_for_until_the_timeout(
    new_run: New, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run()
    run.driven()
    run.start(0, 1)
    run.succeed(0, 1)
    monkeypatch.setattr("windlass.runs.watch.time", SimpleNamespace(monotonic=lambda: math.inf, sleep=None))
    assert main(["wait", "--timeout", "5s"], world) == 0


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes beside which a command was run."""
    pids: list[int] = []

    def execute(pid: int, _command: list[str]) -> int:
        pids.append(pid)
        return 7

    monkeypatch.setattr("windlass.engines.local.beside.execute", execute)
    return pids


def test_exec_waits_for_a_rank_that_has_not_started_yet(
    new_run: New, world: World, monkeypatch: pytest.MonkeyPatch, joined: list[int]
) -> None:
    run = new_run()
    run.driven()
    run.start(0)
    clock = Hands(5.0, lambda: run.rank("rank.started", 1, pid=101))
    monkeypatch.setattr("windlass.cli.exec_command.time", clock)
    assert main(["exec", run.id, "--", "true"], world) == 7
    assert (joined, clock.slept) == ([100], 0.0), "one that fits runs already"
    assert main(["exec", run.id, "--rank", "1", "--", "true"], world) == 7
    assert joined == [100, 101]


def test_exec_does_not_wait_for_a_rank_that_will_not_start(
    new_run: New, world: World, monkeypatch: pytest.MonkeyPatch, joined: list[int]
) -> None:
    run = new_run()
    run.driven()
    run.start(0)
    clock = Hands(math.inf, run.undriven)
    monkeypatch.setattr("windlass.cli.exec_command.time", clock)
    with pytest.raises(WindlassError, match="no such rank is running"):
        main(["exec", run.id, "--rank", "2", "--", "true"], world)
    run.rank("rank.ended", 0, state="succeeded", code=0)
    with pytest.raises(WindlassError, match=r"no rank of .* is running: it is running"):
        main(["exec", run.id, "--rank", "0", "--", "true"], world)
    assert clock.slept == 0.0
    with pytest.raises(WindlassError, match=r"no rank of .* is running: it is running"):
        main(["exec", run.id, "--rank", "1", "--", "true"], world)
    assert clock.slept == pytest.approx(exec_command.PATIENCE)
    run.undriven()
    with pytest.raises(WindlassError, match=r"no rank of .* is running: it is lost"):
        main(["exec", run.id, "--", "true"], world)
    assert clock.slept == pytest.approx(exec_command.PATIENCE)
    assert joined == []


class Interrupting(io.StringIO):
    """Ctrl-C is pressed as soon as these words can be read."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self._words = words

    def write(self, text: str) -> int:
        written = super().write(text)
        if self._words in text:
            raise KeyboardInterrupt
        return written


def test_ctrl_c_as_soon_as_attach_has_said_something_ends_the_viewing_alone(new_run: New, world: World) -> None:
    run = new_run()
    run.start(0, 1)
    run.driven()
    hasty = replace(world, err=Interrupting("attached to"))
    assert main(["attach"], hasty) == 130
    assert f"{run.id} goes on" in err(hasty)


def test_attach_to_a_run_that_is_over_gives_its_end_and_code(new_run: New, world: World) -> None:
    run = new_run()
    failed(run)
    assert main(["attach"], world) == 1
    assert f"windlass why {run.id}" in err(world)


def test_interrupting_attach_ends_the_viewing_alone(new_run: New, tmp_path: Path) -> None:
    import signal

    run = new_run()
    run.start(0, 1)
    run.driven()
    run.log(0, b"shown\n")
    viewer = windlass(tmp_path, "attach")
    assert viewer.stderr is not None
    while viewer.stderr.readline() != b"[worker-0] shown\n":
        pass
    viewer.send_signal(signal.SIGINT)
    _, said = viewer.communicate(timeout=30)
    assert viewer.returncode == 130
    assert f"windlass attach {run.id}".encode() in said
    assert f"windlass stop {run.id}".encode() in said


def test_ls_and_cat_show_files_of_the_run_and_nothing_else(new_run: New, world: World, tmp_path: Path) -> None:
    run = new_run()
    run.start(0, 1)
    run.log(0, b"text\n")
    (tmp_path / "secret").write_text("secret")
    (run.dir / "link").symlink_to(tmp_path / "secret")
    main(["ls", run.id], world)
    assert "logs/train/worker-0.log" in out(world)
    main(["ls", f"{run.id}:logs/train"], world)
    main(["cat", f"{run.id}:logs/train/worker-0.log"], world)
    assert out(world).endswith("text\n")
    main(["cat", run.id, "logs/train/worker-0.log"], world)
    assert out(world).endswith("text\ntext\n")
    for path in ("../../secret", "link", "logs/../../../secret"):
        with pytest.raises(WindlassError, match="leads out of the run"):
            main(["cat", f"{run.id}:{path}"], world)
    with pytest.raises(WindlassError, match="has no") as error:
        main(["cat", f"{run.id}:plan.jsn"], world)
    assert error.value.hint == f"did you mean {run.id}:plan.json?"


def stored(run: Any, tmp_path: Path) -> Path:
    """The run's job has storage of its own, storage on this machine, and some that may only be read."""
    shared = tmp_path / "shared"
    shared.mkdir()
    mounts = (Mount("notes", "pvc"), Mount("output", "path", path=str(shared)), Mount("data", "path", read_only=True))
    (run.dir / layout.PLAN).write_text(plan.to_json(replace(run.plan, storage=mounts)))
    (run.dir / "storage" / "notes").mkdir(parents=True)
    (run.dir / "output" / "train").mkdir(parents=True)
    return shared


def test_cp_copies_files_and_trees_out_of_a_run_and_into_it(new_run: New, world: World, tmp_path: Path) -> None:
    run = new_run()
    shared = stored(run, tmp_path)
    (shared / "there").write_bytes(b"shared")
    run.log(0, b"one\0two")
    main(["cp", f"{run.id}:logs/train/worker-0.log", str(tmp_path)], world)
    assert (tmp_path / "worker-0.log").read_bytes() == b"one\0two"
    main(["cp", f"{run.id}:logs", str(tmp_path / "all")], world)
    assert (tmp_path / "all" / "train" / "worker-0.log").read_bytes() == b"one\0two"
    assert out(world).splitlines() == [str(tmp_path / "worker-0.log"), str(tmp_path / "all")]
    main(["cp", str(tmp_path / "all"), f"{run.id}:notes/"], world)
    main(["cp", str(tmp_path / "worker-0.log"), f"{run.id}:output/train/given"], world)
    main(["cp", f"{run.id}:output/train/given", f"{run.id}:storage/output/again"], world)
    assert (run.dir / "storage/notes/all/train/worker-0.log").read_bytes() == b"one\0two"
    assert (run.dir / "output/train/given").read_bytes() == b"one\0two"
    assert (shared / "again").read_bytes() == b"one\0two"
    main(["ls", f"{run.id}:storage/output"], world)
    assert out(world).endswith("7 B  storage/output/again\n6 B  storage/output/there\n")
    main(["cat", f"{run.id}:notes/all/train/worker-0.log"], world)
    assert out(world).endswith("one\0two")


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (("{run}:logs/nothing", "."), "has no logs/nothing"),
        (("{run}:storage/notes/nothing", "."), "has no storage/notes/nothing"),
        (("nothing-here", "{run}:output/train/"), "there is no nothing-here on this machine"),
        (("{run}:plan.json", "{run}:logs/plan"), "is the run's own record"),
        (("{run}:plan.json", "{run}:data/"), "storage data is read-only"),
        (("{run}:plan.json", "{run}:storage/notes/../../../x"), "leads out of the run"),
        (("a", "b"), "neither is a path of a run"),
    ],
)
def test_cp_refuses_what_cannot_be_copied_with_the_reason(
    new_run: New, world: World, tmp_path: Path, words: tuple[str, str], wrong: str
) -> None:
    run = new_run()
    stored(run, tmp_path)
    with pytest.raises(WindlassError, match=wrong) as error:
        main(["cp", *(word.format(run=run.id) for word in words)], world)
    assert error.value.hint


def test_rm_names_what_it_removed_and_refuses_a_living_run(new_run: New, world: World) -> None:
    gone, living = new_run("gone"), new_run("living")
    gone.start(0, 1)
    gone.succeed(0, 1)
    living.start(0, 1)
    living.driven()
    with pytest.raises(WindlassError, match=f"{living.id} is under way"):
        main(["rm", living.id, gone.id], world)
    assert out(world).startswith(f"removed {gone.id} (")
    assert living.dir.is_dir()
    assert not gone.dir.exists()


def test_what_rm_and_prune_removed_can_be_read_by_a_machine(new_run: New, world: World) -> None:
    gone, living, old = new_run("gone"), new_run("living"), new_run("old")
    for run in (gone, living, old):
        run.start(0, 1)
    living.driven()
    gone.succeed(0, 1)
    old.succeed(0, 1)
    with pytest.raises(WindlassError, match="nosuch"):
        main(["rm", "--json", living.id, "nosuch", gone.id], world)
    told = json.loads(out(world))
    assert [each["what"] for each in told["refused"]] == [living.id, "nosuch"]
    assert [each["what"] for each in told["removed"]] == [gone.id]
    assert told["removed"][0]["bytes"] > 0
    assert told["kept"] == []
    before = len(out(world))
    main(["prune", "--json", "--keep", "0"], world)
    assert [each["what"] for each in json.loads(out(world)[before:])["removed"]] == [old.id]


def test_prune_removes_old_runs_but_never_a_living_or_a_kept_one(new_run: New, world: World) -> None:
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
    main(["prune", "--older-than", "7d", "--keep", "1", "--dry-run"], world)
    assert out(world).startswith(f"would remove {old.id} (")
    assert old.dir.exists()
    main(["prune", "--older-than", "7d", "--keep", "1"], world)
    assert [run.dir.exists() for run in (living, old, kept)] == [True, False, True]
    with pytest.raises(WindlassError, match="which runs"):
        main(["prune"], world)
