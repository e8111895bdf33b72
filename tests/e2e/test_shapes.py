"""Every shape completes as an ordinary user, in a namespace that enforces restricted Pod Security."""

from __future__ import annotations

import pytest

from tests.e2e import jobs
from tests.e2e.place import Place, lives

pytestmark = pytest.mark.slow


def test_workers_train_in_step_and_leave_their_weights(place: Place) -> None:
    run = place.run(place.job(jobs.gang(steps=10, pause=0.0), "gang_sgd.py"))
    assert place.events(run)[-1]["state"] == "succeeded"
    assert len(place.file(run, "output/train/weights.hex").strip()) == 64 * 16
    assert lives(place.log(run, 2)) == {"1.0": list(range(10))}


def test_a_pipeline_of_servers_averages_and_a_gate_passes(place: Place) -> None:
    run = place.run(place.job(jobs.CHAIN, "meet_by_name.py"))
    events = place.events(run)
    assert [e["stage"] for e in events if e["ev"] == "stage.ended" and e["state"] == "succeeded"] == [
        "servers",
        "average",
        "last",
        "good-enough",
    ]
    parts = [f"round {number} worker {rank}\n" for rank in (0, 1) for number in (1, 2)]
    assert place.file(run, "output/last/seen") == "".join(parts)
    assert "1000" in place.windlass("logs", run, "--on", "kubernetes", "-n", place.namespace, "--stage", "last")


def test_a_missed_gate_is_tried_again_and_has_its_own_exit_code(place: Place) -> None:
    text = jobs.single('python3 -c "import windlass; windlass.report(step=1, accuracy=0.5)"')
    text += "  gate:\n    gate: {of: main, metric: accuracy, at_least: 0.8, retries: 1}\n"
    run = place.run(place.job(text), code=3)
    assert [e["passed"] for e in place.events(run) if e["ev"] == "verdict"] == [False, False]


def test_two_runs_side_by_side_do_not_meet(place: Place) -> None:
    job = place.job(jobs.gang(steps=20, pause=0.05), "gang_sgd.py")
    first, second = place.start(job), place.start(job)
    assert place.ended(first)["state"] == place.ended(second)["state"] == "succeeded"
    assert place.file(first, "output/train/weights.hex") == place.file(second, "output/train/weights.hex")
