"""A disturbed run ends with the bits of an undisturbed one, whatever its shape and whoever continues it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from longboat.runtime import journal, run_layout
from tests.chaos.killing import PROGRAMS, weights
from tests.local.place import PATIENCE, Place, until

SHAPES = {
    "single": ("numpy_sgd.py", "shape: single\n", {"TRANSPORT": "none"}),
    "allreduce": ("numpy_sgd.py", "shape: allreduce\nranks: 2\n", {"TRANSPORT": "tcp"}),
    "mpi": ("numpy_sgd.py", "shape: mpi\nranks: 2\n", {"TRANSPORT": "mpi"}),
    "average": ("average_sgd.py", "shape: average\nranks: 2\nrounds: 2\nmerge: python average_sgd.py merge\n", {}),
}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    left = list(found.close())
    assert not left, left


def job(shape: str, more: str = "", **env: str) -> str:
    program, lines, own = SHAPES[shape]
    variables = "".join(
        f'  {name}: "{value}"\n' for name, value in {"STEPS": "50", "EVERY": "10", **own, **env}.items()
    )
    return f"code: {PROGRAMS}\nrun: [python, {program}]\n{lines}{more}env:\n{variables}"


def undisturbed(place: Place, shape: str, **env: str) -> str:
    said = place.run(job(shape, **env))
    assert said.code == 0, said.err
    return weights(place.dir)


def beginnings(place: Place, rank: int = 0) -> list[int]:
    """The first step of each life of a rank."""
    return [int(line.rpartition(" ")[2]) for line in place.log(rank).splitlines() if "begins at step" in line]


@pytest.mark.parametrize("shape", ["single", "allreduce", "mpi"])
def test_a_gang_that_was_killed_twice_ends_with_the_same_bits(place: Place, shape: str) -> None:
    if shape == "mpi":
        pytest.importorskip("mpi4py")
    last = 0 if shape == "single" else 1
    wanted = undisturbed(place, shape)
    said = place.run(job(shape, DIE=f"1.0/{last}/27,2.0/0/33"))
    assert said.code == 0, said.err
    assert weights(place.dir) == wanted
    assert beginnings(place) == [1, 21, 31]
    assert [e.get("resume_step") for e in place.events("gen.started")] == [None, 20, 30]


def test_trainers_of_an_average_stage_resume_alone_in_every_round(place: Place) -> None:
    wanted = undisturbed(place, "average")
    fate = "1.0/1/27,1.1/1/44,3.0/0/15"  # generation 2 is the first merge
    said = place.run(job("average", DIE=fate))
    assert said.code == 0, said.err
    assert weights(place.dir) == wanted
    assert beginnings(place, 0) == [1, 1, 11]
    assert beginnings(place, 1) == [1, 21, 41, 1]


def test_a_merge_that_falls_is_done_again_and_changes_no_bit(place: Place) -> None:
    wanted = undisturbed(place, "average")
    said = place.run(job("average", MERGE_DIES="2"))
    assert said.code == 0, said.err
    assert weights(place.dir) == wanted
    assert beginnings(place, 0) == [1, 1]


def test_a_retry_after_the_restarts_are_spent_continues(place: Place) -> None:
    wanted = undisturbed(place, "allreduce")
    said = place.run(job("allreduce", "restarts: 0\nretries: 1\n", DIE="1.0/1/27"))
    assert said.code == 0, said.err
    assert [e["attempt"] for e in place.events("stage.started")] == [1, 2]
    assert beginnings(place) == [1, 21]
    assert weights(place.dir) == wanted


def test_a_retry_of_an_average_stage_continues_in_its_round(place: Place) -> None:
    wanted = undisturbed(place, "average")
    said = place.run(job("average", "restarts: 0\nretries: 1\n", DIE="3.0/1/27"))
    assert said.code == 0, said.err
    assert [e["attempt"] for e in place.events("stage.started")] == [1, 2]
    assert beginnings(place, 1) == [1, 1, 21]
    assert weights(place.dir) == wanted


def test_another_try_after_a_missed_gate_continues_where_the_first_one_ended(place: Place) -> None:
    """The first attempt leaves after 30 steps; the second goes on to 60, not to another 30."""
    script = """
        import os, numpy as np, longboat
        found = longboat.checkpoint.load()
        total, first = (found.arrays["total"], found.step + 1) if found else (np.zeros(1), 1)
        print("begins at step", first, flush=True)
        for step in range(first, first + 30):
            total = total + step
            longboat.report(step=step, score=float(total[0]))
        longboat.checkpoint.save({"total": total}, step=step)
    """
    text = """
        stages:
          main: {run: python work.py}
          good: {gate: {of: main, metric: score, at_least: 1800, retries: 3}}
    """
    place.file("work.py", script)
    said = place.run(text)
    assert said.code == 0, said.err
    assert beginnings(place) == [1, 31]
    assert [e["value"] for e in place.events("verdict")] == [465, 1830]


@pytest.mark.parametrize("shape", ["allreduce", "average"])
def test_a_run_whose_supervisor_was_killed_goes_on_to_the_same_bits(place: Place, shape: str) -> None:
    pace = {"STEPS": "60"}
    wanted = undisturbed(place, shape, **pace)
    before = set(place.runs)
    command = place.begin("run", place.job(job(shape, **pace, HOLD="30")))
    (run,) = until(lambda: set(place.runs) - before)

    def far_enough() -> bool:
        """A checkpoint is there; where there are rounds, one of the second round."""
        events = [event for event in journal.read(str(run)) if event["ev"] in ("gen.started", "checkpoint")]
        rounds = [event.get("round", 1) for event in events if event["ev"] == "gen.started"]
        return events[-1:] != [] and events[-1]["ev"] == "checkpoint" and (shape != "average" or rounds[-1] == 2)

    until(far_enough, "the moment to kill the supervisor")
    os.kill(command.pid, signal.SIGKILL)
    command.process.wait()
    place.nothing_is_left()
    (Path(run_layout.output(str(run), "main")) / "hurry").touch()
    started = len(journal.read(str(run)))
    said = place("run", "--resume", run.name)
    assert said.code == 0, said.err
    assert weights(run) == wanted
    after = [event for event in journal.read(str(run))[started:] if event["ev"] == "gen.started"]
    if shape == "average":
        assert after[0]["round"] == 2
    else:
        assert after[0]["resume_step"] >= 10


SMALL_DISK = """
set -eu
mount -t tmpfs -o size=6m tmpfs "$HOME_OF_RUNS"
trap 'cp -r "$HOME_OF_RUNS" "$COPY"' EXIT
"$PYTHON" -m longboat run job.yaml
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare to mount a disk"
)
def test_a_full_disk_costs_checkpoints_and_a_warning_and_training_goes_on(place: Place, tmp_path: Path) -> None:
    """On a disk of 6 MB there is room for three checkpoints of 1.6 MB; not for two and one of 5.6 MB."""
    script = """
        import os, time, numpy as np, longboat
        for step in range(1, 9):
            while step > 1 and len(os.listdir(os.environ["LONGBOAT_CHECKPOINT_DIR"])) > 2:
                time.sleep(0.01)  # until the driver has taken away what need not be kept
            size = 200_000 if step != 5 else 700_000
            longboat.checkpoint.save({"w": np.full(size, float(step))}, step=step, wait=True)
            longboat.report(step=step, total=8)
            print("step", step, flush=True)
    """
    place.job("run: python work.py\nrestarts: 0\n", work=script)
    home, copy = tmp_path / "small", tmp_path / "copy"
    home.mkdir()
    env: dict[str, Any] = {
        **place.env,
        "LONGBOAT_HOME": home,
        "HOME_OF_RUNS": home,
        "COPY": copy,
        "PYTHON": sys.executable,
    }
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", SMALL_DISK],
        env=env, cwd=place.code, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    place.home = copy
    assert place.log() == "".join(f"step {step}\n" for step in range(1, 9))
    warnings = [e["text"] for e in place.events("note") if e.get("level") == "warning"]
    assert warnings == [
        "worker-0 could not write the checkpoint of step 5: No space left on device; training continues"
    ]
    assert [e["step"] for e in place.events("checkpoint")] == [1, 2, 3, 4, 6, 7, 8]
