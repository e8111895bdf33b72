"""A run in a cluster can be watched, asked, entered and removed from any machine, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

import longboat
from tests.e2e import jobs
from tests.e2e.place import LONGBOAT, PATIENCE, Place

pytestmark = pytest.mark.slow


def test_somebody_else_finds_the_run_reads_it_and_removes_all_of_it(place: Place, tmp_path: Path) -> None:
    run = place.start(place.job(jobs.gang(30, 0.1), "gang_sgd.py"))
    other = Place(place.namespace, tmp_path / "other")
    other.home.mkdir(parents=True)
    there = ("--on", "kubernetes", "-n", place.namespace)
    followed = other.longboat("logs", "-f", run, *there)
    assert followed.count("[worker-1] life") == 30
    assert run in other.longboat("status", *there)
    assert "train/worker-2  succeeded" in other.longboat("status", run, *there)
    assert "nothing to explain" in other.longboat("why", run, *there)
    assert "output/train/weights.hex" in other.longboat("ls", run, *there)
    other.longboat("rm", run, *there)
    place.until(lambda: not place.cluster.left(run))
    assert "nothing is left" in other.longboat("left", "-n", place.namespace)


def test_a_command_runs_beside_a_rank_with_its_environment(place: Place) -> None:
    run = place.start(place.job(jobs.gang(1000, 0.1), "gang_sgd.py"))
    place.until(lambda: place.steps(run) > 0)
    words = ("exec", run, "--on", "kubernetes", "-n", place.namespace, "--rank", "1", "--")
    assert place.longboat(*words, "sh", "-c", "echo $RANK of $WORLD_SIZE; ls") == "1 of 3\ngang_sgd.py\njob.yaml\n"
    assert place.longboat(*words, "sh", "-c", "exit 7", code=7) == ""
    assert "still running" in place.longboat("rm", run, "--on", "kubernetes", "-n", place.namespace, code=2)


def test_the_watcher_may_be_killed_at_any_time(place: Place) -> None:
    job = place.job(jobs.gang(40, 0.1), "gang_sgd.py")
    words = [*LONGBOAT, "run", str(job), "--on", "kubernetes", "-n", place.namespace]
    watcher = subprocess.Popen(
        words, env={**os.environ, "LONGBOAT_HOME": str(place.home)}, stderr=subprocess.PIPE, text=True
    )
    assert watcher.stderr is not None
    run = next(line for line in watcher.stderr if line.startswith("submitted ")).split()[1]
    place.until(lambda: place.steps(run) > 2)
    watcher.send_signal(signal.SIGKILL)
    watcher.wait()
    watcher.stderr.close()
    assert place.ended(run)["state"] == "succeeded"
    place.longboat("rm", run)
    place.until(lambda: not place.cluster.left(run))


def test_ctrl_c_ends_the_watching_and_says_how_to_go_on(place: Place) -> None:
    job = place.job(jobs.gang(1000, 0.1), "gang_sgd.py")
    words = [*LONGBOAT, "run", str(job), "--on", "kubernetes", "-n", place.namespace, "-q"]
    watcher = subprocess.Popen(
        words,
        env={**os.environ, "LONGBOAT_HOME": str(place.home)},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 (who tests in the background ignores it)
    )
    assert watcher.stderr is not None
    run = next(line for line in watcher.stderr if line.startswith("submitted ")).split()[1]
    place.until(lambda: place.steps(run) > 0)
    watcher.send_signal(signal.SIGINT)
    said = watcher.stderr.read()
    watcher.stderr.close()
    assert watcher.wait() == 130
    assert f"longboat attach {run}" in said
    assert place.events(run)[-1]["ev"] != "run.ended"


def test_an_exported_file_applied_by_hand_runs_the_whole_job(place: Place, kubectl: str) -> None:
    job = place.job(jobs.gang(10, 0.0), "gang_sgd.py")
    file = place.directory / "exported.yaml"
    place.longboat("export", job, "--to", "yaml", "-o", file, "-n", place.namespace, "--run", "gang-byhand")
    assert "token:" not in file.read_text()
    subprocess.run([kubectl, "apply", "--server-side", "-f", str(file)], check=True, stdout=subprocess.DEVNULL)
    assert place.ended("gang-byhand")["state"] == "succeeded"
    subprocess.run([kubectl, "delete", "-f", str(file)], check=True, stdout=subprocess.DEVNULL)
    place.until(lambda: not place.cluster.left("gang-byhand"))


def test_python_starts_reads_stops_resumes_and_removes_a_run_in_the_cluster(place: Place) -> None:
    job = longboat.load(place.job(jobs.gang(40, 0.2, undisturbed=2), "gang_sgd.py"), on="kubernetes")
    run = job.run(str(place.home), namespace=place.namespace)
    place.until(lambda: place.steps(run.id) > 2)
    assert run.stop()
    assert run.status().state == "stopped"
    assert "stopped by Run.stop()" in run.why().headline
    again = longboat.Run(run.id, str(place.home)).resume()  # known on this machine, so no word of where it is
    assert again.wait(PATIENCE).state == "succeeded"
    assert any(line.text.startswith(b"life ") for line in again.logs())
    assert list(again.output("train").iterdir())
    again.rm()
    place.until(lambda: not place.cluster.left(run.id))
