"""What a cluster takes away, the run gets back: ranks' pods, the driver, and nothing of it shows in the weights."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from longboat.runtime.kube_client import names
from tests.cluster.places import locked
from tests.e2e import jobs
from tests.e2e.place import Place, lives, told

pytestmark = pytest.mark.slow

STEPS = 80


@pytest.fixture(scope="module")
def weights(namespace: str, session_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What an undisturbed run of the same job leaves; the first worker that needs it runs it for all."""
    known = session_directory / "undisturbed-weights"
    with locked(known.with_suffix(".lock")):
        if not known.exists():
            place = Place(namespace, tmp_path_factory.mktemp("undisturbed"))
            run = place.run(place.job(jobs.gang(STEPS, 0.0), "gang_sgd.py"))
            known.write_text(place.file(run, "output/train/weights.hex"))
            place.cluster.remove(run)
    return known.read_text()


def check(place: Place, run: str, weights: str, generations: int) -> None:
    """It ended right, and nothing is missing."""
    assert place.ended(run)["state"] == "succeeded"
    events = place.events(run)
    assert [e["gen"] for e in events if e["ev"] == "gen.started"] == list(range(1, generations + 1))
    assert place.file(run, "output/train/weights.hex") == weights
    for rank in range(3):
        written, said = lives(place.log(run, rank)), told(events, rank)
        for life, numbers in written.items():
            assert numbers == list(range(len(numbers))), f"worker-{rank}: a line of life {life} is missing or doubled"
            assert len(numbers) > said.get(life.split(".")[0], -1), f"worker-{rank}: the end of life {life} is missing"


@pytest.mark.parametrize("rank", [0, 2])
def test_a_deleted_pod_is_replaced_and_training_goes_on_from_the_checkpoint(
    place: Place, weights: str, rank: int
) -> None:
    run = place.start(place.job(jobs.gang(STEPS, 0.1, undisturbed=2), "gang_sgd.py"))
    place.until(lambda: place.steps(run) > 20)
    before = place.pods(run)
    place.cluster.api.delete("Pod", before[f"worker-{rank}"]["metadata"]["name"])
    place.until(lambda: any(e["ev"] == "gen.started" and e["gen"] == 2 for e in place.events(run)))
    after = place.pods(run)
    check(place, run, weights, 2)
    for seat, pod in before.items():
        kept = after[seat]["metadata"]["uid"] == pod["metadata"]["uid"]
        assert kept == (seat != f"worker-{rank}"), "survivors keep their pods, and only they"
    reasons = [e["cause"]["kind"] for e in place.events(run) if e["ev"] == "gen.ended" and e.get("cause")]
    assert reasons == ["preempted"], "a deletion costs no restart"


def test_what_a_rank_saves_when_it_and_the_driver_are_deleted_together_is_resumed_from(place: Place) -> None:
    job = place.job(jobs.single("python3 save_when_stopped.py"), "save_when_stopped.py")
    run = place.start(job)
    place.until(lambda: place.steps(run) > 10)
    pods = [names.driver_pod(run), *(pod["metadata"]["name"] for pod in place.pods(run).values())]
    for pod in pods:
        place.cluster.api.delete("Pod", pod)
    assert place.ended(run)["state"] == "succeeded"
    log = "\n".join(place.log(run, 0))
    saved = re.findall(r"^saved step (\d+)$", log, re.M)
    assert len(saved) == 1, "it was told once, and in time"
    assert re.findall(r"^first step (\d+)$", log, re.M) == ["0", str(int(saved[0]) + 1)]


def test_a_pod_deleted_by_force_is_replaced_too(place: Place, weights: str) -> None:
    run = place.start(place.job(jobs.gang(STEPS, 0.1, undisturbed=2), "gang_sgd.py"))
    place.until(lambda: place.steps(run) > 20)
    place.cluster.api.delete("Pod", place.pods(run)["worker-1"]["metadata"]["name"], grace=0)
    check(place, run, weights, 2)


def test_a_deleted_driver_comes_back_while_the_ranks_train_on(place: Place, weights: str) -> None:
    run = place.start(place.job(jobs.gang(STEPS, 0.3, held=True), "gang_sgd.py"))
    place.until(lambda: place.steps(run) > 10)
    before = {seat: pod["metadata"]["uid"] for seat, pod in place.pods(run).items()}
    place.cluster.api.delete("Pod", names.driver_pod(run))
    place.until(lambda: sum(e["ev"] == "run.started" for e in place.events(run)) == 2)
    assert {seat: pod["metadata"]["uid"] for seat, pod in place.pods(run).items()} == before
    place.release(run)
    check(place, run, weights, 1)


def test_a_run_stops_when_it_is_asked_to(place: Place) -> None:
    run = place.start(place.job(jobs.gang(1000, 0.1), "gang_sgd.py"))
    place.until(lambda: place.steps(run) > 3)
    place.longboat("stop", run, "--on", "kubernetes", "-n", place.namespace)
    last = place.events(run)[-1]
    assert (last["state"], last["code"]) == ("stopped", 130)
    place.until(lambda: not place.pods(run))


SLOW_TO_STOP = f"""
import os, signal, sys, time
def stop(*_):
    while not os.path.exists({jobs.GO!r}):
        time.sleep(0.05)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("up", flush=True)
time.sleep(600)
"""


def test_a_stop_outlives_the_driver_that_was_asked_for_it(place: Place) -> None:
    job = place.job(jobs.single("python3 slow.py", "    grace: 600s"))
    (job / "slow.py").write_text(SLOW_TO_STOP)
    run = place.start(job)
    place.until(lambda: "up" in place.log(run, 0))
    there = ("--on", "kubernetes", "-n", place.namespace)
    place.longboat("stop", run, *there, "--no-wait")
    place.cluster.api.delete("Pod", names.driver_pod(run), grace=0)
    place.until(lambda: sum(e["ev"] == "run.started" for e in place.events(run)) == 2)
    place.release(run)
    assert place.ended(run)["state"] == "stopped"
    assert sum(e["ev"] == "run.started" for e in place.events(run)) == 2
    assert "stopped by longboat stop" in place.longboat("why", run, *there)


TRAINED = "import os, longboat\nlongboat.report(step=1, accuracy=0.1 * int(os.environ['LONGBOAT_ATTEMPT']))\n"


def test_retries_that_a_driver_has_used_are_not_given_to_the_next_one(place: Place) -> None:
    stages = "  export: {run: sleep 8, after: main}\n"
    stages += "  good: {gate: {of: main, metric: accuracy, at_least: 0.9, retries: 2}, after: export}\n"
    job = place.job(jobs.single("python3 train.py", stages))
    (job / "train.py").write_text(TRAINED)
    run = place.start(job)
    place.until(lambda: any(e["ev"] == "stage.started" and e.get("attempt") == 2 for e in place.events(run)))
    place.cluster.api.delete("Pod", names.driver_pod(run), grace=0)
    assert place.ended(run)["state"] == "gate_missed"
    events = place.events(run)
    assert sum(e["ev"] == "run.started" for e in events) == 2
    assert [(e["attempt"], round(e["value"], 1)) for e in events if e["ev"] == "verdict"] == [
        (1, 0.1),
        (2, 0.2),
        (3, 0.3),
    ]
    begun = [(e["stage"], e["attempt"]) for e in events if e["ev"] == "stage.started"]
    assert begun == [("main", 1), ("export", 1), ("main", 2), ("export", 2), ("main", 3), ("export", 3)]


def test_a_lost_trainer_of_an_average_comes_back_alone_from_its_own_checkpoint(place: Place) -> None:
    text = f"name: lone\nimage: {jobs.PYTHON}\nshape: average\nranks: 2\n"
    text += "run: python3 lone_trainer.py\nmerge: python3 lone_trainer.py merge\n"
    run = place.start(place.job(text, "lone_trainer.py"))
    place.until(lambda: place.step_of(run, 1) > 8 and place.saved(run, "worker-1"))
    place.cluster.api.delete("Pod", place.pods(run)["worker-1"]["metadata"]["name"])
    assert place.ended(run)["state"] == "succeeded"
    started = [(e["role"], e["rank"], e["gen"], e["restart"]) for e in place.events(run) if e["ev"] == "rank.started"]
    assert sorted(started) == [("merge", 0, 2, 0), ("worker", 0, 1, 0), ("worker", 1, 1, 0), ("worker", 1, 1, 1)]
    again = [line for line in place.log(run, 1) if line.startswith("life 1 ")]
    assert again[0] != "life 1 step 0", "it began anew"
    assert "merged 120" in place.longboat("logs", run, "--on", "kubernetes", "-n", place.namespace, "--role", "merge")


def test_a_stopped_run_goes_on_from_its_checkpoint_when_it_is_resumed(place: Place, weights: str) -> None:
    run = place.start(place.job(jobs.gang(STEPS, 0.1, undisturbed=2), "gang_sgd.py"))
    place.until(lambda: place.steps(run) > 20 and place.saved(run))
    there = ("--on", "kubernetes", "-n", place.namespace)
    place.longboat("stop", run, *there)
    said = place.longboat("run", "--resume", run, *there)
    assert "succeeded" in said
    starts = [e for e in place.events(run) if e["ev"] == "gen.started"]
    assert [e["gen"] for e in starts] == [1, 2]
    assert starts[1]["resume_step"] > 0
    assert place.file(run, "output/train/weights.hex") == weights
