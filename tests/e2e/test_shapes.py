"""Every shape completes as an ordinary user, in a namespace that enforces restricted Pod Security."""

from __future__ import annotations

import os

import pytest

from longboat.runtime.kube_client import names
from tests.cluster import addons
from tests.cluster.cluster import Cluster
from tests.cluster.places import home
from tests.e2e import jobs
from tests.e2e.place import Place, lives

pytestmark = pytest.mark.slow


def test_workers_train_in_step_and_leave_their_weights(place: Place) -> None:
    run = place.run(place.job(jobs.gang(steps=10, pause=0.0), "gang_sgd.py"))
    assert place.events(run)[-1]["state"] == "succeeded"
    assert len(place.file(run, "output/train/weights.hex").strip()) == 64 * 16
    assert lives(place.log(run, 2)) == {"1.0": list(range(10))}


KILL_AGENT = """
import glob, os
for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        parent = int(open(path.replace("environ", "stat")).read().rpartition(")")[2].split()[1])
        found = b"LONGBOAT_RANK=1\\0" in open(path, "rb").read()
    except OSError:
        continue  # it has just ended
    if found and parent not in (0, 1):
        os.kill(parent, 9)
        break
"""


def test_ranks_that_share_a_pod_train_in_step_and_are_replaced_together(place: Place) -> None:
    plain = jobs.gang(steps=60, pause=0.0, ranks=4)
    shared = jobs.gang(steps=60, pause=0.15, ranks=4, undisturbed=3).replace("ranks: 4", "ranks: 4\n    per_node: 2")
    run = place.start(place.job(shared, "gang_sgd.py"))
    beside = ("--on", "kubernetes", "-n", place.namespace, "--")
    place.until(lambda: place.steps(run) >= 12 and place.saved(run))
    pods = place.pods(run)
    assert sorted(pods) == ["worker-0", "worker-2"], "two pods for four ranks"
    assert pods["worker-2"]["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "100m", "memory": "96Mi"}
    words = ("sh", "-c", "echo $LONGBOAT_RANK $LOCAL_RANK of $LOCAL_WORLD_SIZE; pwd")
    assert place.longboat("exec", run, "--rank", "3", *beside, *words) == "3 1 of 2\n/longboat/code\n"
    place.cluster.api.delete("Pod", pods["worker-2"]["metadata"]["name"])
    place.until(lambda: _generation(place, run, "rank.report") == 2)
    place.longboat("exec", run, "--rank", "1", *beside, "python3", "-c", KILL_AGENT, code=None)
    assert place.ended(run)["state"] == "succeeded"
    starts = [event for event in place.events(run) if event["ev"] == "gen.started"]
    assert [event["gen"] for event in starts] == [1, 2, 3]
    assert all(event["resume_step"] > 0 for event in starts[1:]), "from a checkpoint, not from the beginning"
    for rank in range(4):
        assert {"1.0", "3.0"} <= set(lives(place.log(run, rank)))
    undisturbed = place.run(place.job(plain, "gang_sgd.py"))
    assert place.file(run, "output/train/weights.hex") == place.file(undisturbed, "output/train/weights.hex")


def _generation(place: Place, run: str, event: str) -> int:
    """The last of which the journal has such an event."""
    return max((int(e["gen"]) for e in place.events(run) if e["ev"] == event), default=0)


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
    assert "1000" in place.longboat("logs", run, "--on", "kubernetes", "-n", place.namespace, "--stage", "last")


def test_a_missed_gate_is_tried_again_and_has_its_own_exit_code(place: Place) -> None:
    text = jobs.single('python3 -c "import longboat; longboat.report(step=1, accuracy=0.5)"')
    text += "  gate:\n    gate: {of: main, metric: accuracy, at_least: 0.8, retries: 1}\n"
    run = place.run(place.job(text), code=3)
    events = place.events(run)
    assert [e["passed"] for e in events if e["ev"] == "verdict"] == [False, False]
    assert [e["state"] for e in events if e["ev"] == "rank.ended"] == ["succeeded", "succeeded"]
    assert not [e for e in events if e["ev"] == "gen.ended" and e["state"] != "succeeded"]


def test_two_runs_side_by_side_do_not_meet(place: Place) -> None:
    job = place.job(jobs.gang(steps=20, pause=0.05), "gang_sgd.py")
    first, second = place.start(job), place.start(job)
    assert place.ended(first)["state"] == place.ended(second)["state"] == "succeeded"
    assert place.file(first, "output/train/weights.hex") == place.file(second, "output/train/weights.hex")


def test_mpi_runs_over_pods_without_ssh_or_root(place: Place) -> None:
    text = f"name: mpi\nimage: {jobs.MPI}\nrun: python3 -m mpi4py mpi_sum.py\nshape: mpi\nranks: {{worker: 3}}\n"
    run = place.run(place.job(text, "mpi_sum.py"))
    events = place.events(run)
    assert sorted(e["role"] for e in events if e["ev"] == "rank.ended" and e["state"] == "succeeded") == [
        "launcher",
        "worker",
        "worker",
        "worker",
    ]
    hosts = set()
    for rank in range(3):
        line = place.log(run, rank)[-1].split()
        assert line[:-1] == ["rank", str(rank), "of", "3", "sum", "6"]
        hosts.add(line[-1])
    assert len(hosts) == 3, "each in a pod of its own"


def test_open_mpi_runs_over_pods_too(place: Place) -> None:
    if not os.environ["KUBECONFIG"].startswith(str(home())):
        pytest.skip("KUBECONFIG names another cluster, which has no image with Open MPI")
    image = addons.image(Cluster("test", print), "openmpi", print)
    text = f"name: mpi\nimage: {image}\nrun: python3 -m mpi4py mpi_sum.py\nshape: mpi\nranks: {{worker: 3}}\n"
    run = place.run(place.job(text, "mpi_sum.py"))
    hosts = set()
    for rank in range(3):
        library, line = place.log(run, rank, "--role", "worker")  # mpirun itself may warn
        assert library.startswith("Open MPI v5")
        assert line.split()[:-1] == ["rank", str(rank), "of", "3", "sum", "6"]
        hosts.add(line.split()[-1])
    assert len(hosts) == 3, "each in a pod of its own"


def test_a_failing_mpi_rank_is_the_cause_and_not_its_launcher(place: Place) -> None:
    text = f"name: mpi\nimage: {jobs.MPI}\nrun: python3 -m mpi4py mpi_sum.py\nshape: mpi\nranks: {{worker: 2}}\n"
    run = place.run(place.job(text + "restarts: 0\nenv: {FAIL: '1'}\n", "mpi_sum.py"), code=1)
    cause = place.events(run)[-1]["cause"]
    assert (cause["kind"], cause["role"], cause["rank"]) == ("user_error", "worker", 1)
    assert "ValueError: on purpose" in place.longboat("why", run, "--on", "kubernetes", "-n", place.namespace)


def test_a_shared_volume_holds_the_run_directory_of_all_pods(place: Place) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "shared"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "100Mi"}}},
    }
    place.cluster.api.create(claim)
    job = place.job(jobs.gang(10, 0.0, extra="storage: {run: {pvc: shared}}"), "gang_sgd.py")
    run = place.run(job)
    assert place.cluster.api.find("PersistentVolumeClaim", names.volume(run)) is None
    assert len(place.file(run, "output/train/weights.hex").strip()) == 64 * 16
    place.longboat("rm", run)
    place.cluster.api.delete("PersistentVolumeClaim", "shared")
