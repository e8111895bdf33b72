"""Runs and commands that get in each other's way, and a driver that loses half of itself."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path

from longboat.engines.kubernetes import pod_exec
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import ApiError
from tests.e2e import jobs
from tests.e2e.place import LONGBOAT, Place, lives


def both(place: Place, *words: str | Path) -> list[tuple[int, str]]:
    """The same command twice at once: exit codes with what they printed."""
    environ = {**os.environ, "LONGBOAT_HOME": str(place.home), "NO_COLOR": "1"}
    where = ("--on", "kubernetes", "-n", place.namespace)
    command = [*LONGBOAT, *map(str, words), *where]
    twins = [
        subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(2)
    ]
    said = [twin.communicate()[0] for twin in twins]
    return sorted((twin.returncode, text) for twin, text in zip(twins, said, strict=True))


def test_two_who_submit_a_job_at_once_get_a_run_each(place: Place) -> None:
    job = place.job(jobs.gang(10, 0.0), "gang_sgd.py")
    (first, one), (second, other) = both(place, "run", job, "--detach")
    assert (first, second) == (0, 0), one + other
    runs = {one.split()[0], other.split()[0]}
    assert len(runs) == 2
    assert [place.ended(run)["state"] for run in runs] == ["succeeded"] * 2
    assert len({place.file(run, "output/train/weights.hex") for run in runs}) == 1


def test_of_two_who_resume_a_run_at_once_one_does(place: Place) -> None:
    # Held three steps behind a checkpoint, the one who goes on from there is held again.
    run = place.start(place.job(jobs.gang(26, 0.1, held=True), "gang_sgd.py"))
    place.until(lambda: place.steps(run) == 13)
    there = ("--on", "kubernetes", "-n", place.namespace)
    place.longboat("stop", run, *there)
    elsewhere = Place(place.namespace, place.directory / "elsewhere")
    assert json.loads(elsewhere.longboat("status", run, "--json", *there))["state"] == "stopped"
    (won, one), (lost, other) = both(place, "run", "--resume", run, "--detach")
    assert (won, lost) == (0, 2), one + other
    assert f"somebody else has just resumed {run}" in other or f"{run} is still running" in other
    place.until(lambda: any(e["ev"] == "gen.started" and e["gen"] == 2 for e in place.events(run)))
    assert json.loads(elsewhere.longboat("status", run, "--json", *there))["state"] == "running"
    place.release(run)
    assert f"{run} succeeded" in elsewhere.longboat("wait", run, *there)
    assert sum(event["ev"] == "run.started" for event in place.events(run)) == 2


def test_a_stage_waits_for_the_room_that_the_one_before_it_leaves(place: Place) -> None:
    text = jobs.single("python3 -c pass") + "  then:\n    after: main\n    run: python3 -c pass\n"
    quota = {"hard": {"count/pods": "2"}}  # the driver's, and one more, whether it runs or has ended
    place.cluster.api.create({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "two"}, "spec": quota})
    try:
        place.until(lambda: place.cluster.api.get("ResourceQuota", "two").get("status", {}).get("hard"))
        place.until(lambda: not place.cluster.api.list("Pod"))
        run = place.run(place.job(text))
    finally:
        place.cluster.api.delete("ResourceQuota", "two")
    assert [e["stage"] for e in place.events(run) if e["ev"] == "stage.ended"] == ["main", "then"]


KILL_DEPOT = """
import glob, os
def read(pid, name):
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read()
for path in glob.glob("/proc/[0-9]*"):
    pid = path.rpartition("/")[2]
    try:
        parent = int(read(pid, "stat").rpartition(b")")[2].split()[1])
        if parent and read(pid, "cmdline") == read(parent, "cmdline"):  # it is a fork
            os.kill(int(pid), 9)
    except OSError:
        continue  # it has just ended
"""


def test_a_driver_without_its_depot_is_replaced_and_no_file_is_lost(place: Place) -> None:
    run = place.start(place.job(jobs.gang(40, 0.1, held=True), "gang_sgd.py"))
    place.until(lambda: place.steps(run) >= 20)
    with contextlib.suppress(ApiError, OSError):  # the driver ends with its depot, and with that container the killer
        pod_exec.output(place.cluster.api, names.driver_pod(run), ["python3", "-c", KILL_DEPOT], "driver")
    place.until(lambda: sum(event["ev"] == "run.started" for event in place.events(run)) == 2)
    place.release(run)
    assert place.ended(run)["state"] == "succeeded"
    assert [event["gen"] for event in place.events(run) if event["ev"] == "gen.started"] == [1], "ranks trained on"
    plain = place.run(place.job(jobs.gang(40, 0.0), "gang_sgd.py"))
    assert place.file(run, "output/train/weights.hex") == place.file(plain, "output/train/weights.hex")
    assert lives(place.log(run, 0)) == {"1.0": list(range(40))}, "every line, once"
