"""Storage of runs in a cluster: looked into with no pod of the run there, made where there is none, and kept."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from longboat import spec
from longboat.engines.kubernetes import leftovers, storage
from longboat.engines.kubernetes.cluster import Cluster
from longboat.runtime.kube_client import names
from tests.e2e import jobs
from tests.e2e.place import LONGBOAT, Place

pytestmark = pytest.mark.slow

WRITE = """python3 -c "
import hashlib, os
data = os.urandom(30_000_000)
for place in (os.environ['LONGBOAT_MOUNT_KEPT'], os.environ['LONGBOAT_OUTPUT_DIR']):
    open(place + '/weights.bin', 'wb').write(data)
print('sha', hashlib.sha256(data).hexdigest())
"
"""


def claim(place: Place, name: str) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    made = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}
    place.cluster.api.create(made)


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def helpers(place: Place, run: str) -> list[str]:
    """Helpers' pods that are not going away."""
    pods = place.cluster.api.list("Pod", names.selector(run, names.HELPER))
    return [pod["metadata"]["name"] for pod in pods if not pod["metadata"].get("deletionTimestamp")]


def test_files_are_copied_out_of_a_run_and_its_storage_and_into_them_after_its_end(
    place: Place, tmp_path: Path
) -> None:
    claim(place, "kept")
    run = place.run(place.job(jobs.single("sh write.sh", "storage: {kept: {pvc: kept}}"), script=WRITE))
    wanted = next(line for line in place.log(run, 0) if line.startswith("sha")).split()[1]
    there = ("--on", "kubernetes", "-n", place.namespace)
    assert "30.0 MB  storage/kept/weights.bin" in place.longboat("ls", f"{run}:kept", *there)
    place.longboat("cp", f"{run}:storage/kept/weights.bin", tmp_path, *there)
    place.longboat("cp", f"{run}:output", tmp_path / "results", *there)
    assert sha(tmp_path / "weights.bin") == wanted
    assert sha(tmp_path / "results" / "main" / "weights.bin") == wanted
    place.longboat("cp", tmp_path / "results", f"{run}:kept/", *there)
    place.longboat("cp", tmp_path / "weights.bin", f"{run}:output/main/again.bin", *there)
    (tmp_path / "weights.bin").unlink()
    place.longboat("cp", f"{run}:kept/results/main/weights.bin", tmp_path, *there)
    place.longboat("cp", f"{run}:output/main/again.bin", tmp_path / "again.bin", *there)
    assert {sha(tmp_path / "weights.bin"), sha(tmp_path / "again.bin")} == {wanted}
    said = place.longboat("cat", f"{run}:kept/wieghts.bin", *there, code=2)
    assert f"did you mean {run}:storage/kept/weights.bin?" in said
    assert helpers(place, run) == []

    words = [*LONGBOAT, "cp", f"{run}:kept/weights.bin", str(tmp_path), *there]
    for _ in range(9):
        (tmp_path / "weights.bin").unlink()
        copier = subprocess.Popen(
            words,
            env={**os.environ, "LONGBOAT_HOME": str(place.home)},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509 (see test_reading)
        )
        place.until(lambda copier=copier: helpers(place, run) or copier.poll() is not None)  # type: ignore[misc]
        copier.send_signal(signal.SIGINT)
        if copier.wait() != 0:  # else all was copied before the signal came
            break
    assert copier.returncode == 130
    assert list(tmp_path.glob("*weights*")) == [], "neither under its name nor beside it"
    assert helpers(place, run) == []


MADE = """
name: keeper
image: {image}
storage: {{kept: {{make: {{size: 1Gi, mode: ReadWriteOnce}}}}}}
stages:
  train:
    shape: allreduce
    ranks: 3
    run: 'ls $LONGBOAT_MOUNT_KEPT; echo $LONGBOAT_RUN_ID > $LONGBOAT_MOUNT_KEPT/$LONGBOAT_RUN_ID-$RANK'
"""


def test_storage_that_is_made_outlives_the_run_serves_the_next_and_goes_when_it_is_asked_for(place: Place) -> None:
    job = place.job(MADE.format(image=jobs.PYTHON))
    there = ("--on", "kubernetes", "-n", place.namespace)
    said = place.longboat("run", job, *there)
    assert "storage kept: the claim keeper-kept was made; `longboat rm` keeps it" in said
    first = said.partition("submitted ")[2].split()[0]

    def placed() -> list[list[str]]:
        events = place.cluster.api.list("Event", fields="reason=Scheduled")
        found = [event for event in events if f"{first}-train" in event["involvedObject"]["name"]]
        return [event["message"].split() for event in found] if len(found) >= 3 else []  # they come behind the pods

    words = place.until(placed)
    assert len(words) == 3
    assert len({each[-1] for each in words}) == 1, (
        "storage that one node at a time can mount brings all ranks to one node"
    )
    said = place.longboat("rm", first, *there)
    assert f"kubectl delete -n {place.namespace} persistentvolumeclaim/keeper-kept" in said
    place.until(lambda: {obj["kind"] for obj in place.cluster.left(first)} == {"PersistentVolumeClaim"})
    said = place.longboat("left", "-n", place.namespace)
    assert "keeper-kept" in said
    assert f"longboat rm {first} --on kubernetes -n {place.namespace} --data" in said

    said = place.longboat("run", job, *there)
    assert "the claim keeper-kept is there and is used again" in said
    assert f"{first}-2" in said, "a rank of the second run lists what the first has written"
    second = said.partition("submitted ")[2].split()[0]
    assert place.longboat("cat", f"{second}:kept/{first}-1", *there).strip() == first
    assert "is storage" not in place.longboat("rm", second, *there, "--data")
    place.until(lambda: not place.cluster.left())


NFS = """
name: shared
image: {image}
storage: {{all: {{make: {{size: 1Gi, nfs: true}}}}}}
run: ls
"""


@pytest.fixture
def open_namespace(place: Place) -> Iterator[Cluster]:
    """A namespace that lets privileged pods run."""
    name = f"{place.namespace}-open"
    place.cluster.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield Cluster(os.environ, namespace=name)
    place.cluster.api.delete("Namespace", name)


def test_an_nfs_server_is_made_with_a_volume_of_its_own_and_goes_with_it(place: Place, open_namespace: Cluster) -> None:
    """The kernel here mounts no NFS: what is seen is that the cluster takes the objects and binds the claim."""
    job = place.job(NFS.format(image=jobs.PYTHON))
    said = place.longboat("run", job, "--on", "kubernetes", "-n", place.namespace, code=2)
    assert f"the namespace {place.namespace} does not let an NFS server run" in said
    place.until(lambda: not place.cluster.left())  # what was made before the refusal is gone again

    plan = spec.load(str(job), sets={}, environ={}, preset=None, engine="kubernetes", remote=True, env_files=[]).plan()
    cluster, told = open_namespace, list[str]()
    storage.make(cluster, plan, "shared-bobok", told.append)
    assert told == ["storage all: the NFS server shared-all-nfs was made; `longboat rm` keeps it"]
    volume = cluster.api.get("PersistentVolume", f"{cluster.namespace}-shared-all")
    assert volume["spec"]["nfs"]["server"] == cluster.api.get("Service", "shared-all-nfs")["spec"]["clusterIP"]
    claim = ("PersistentVolumeClaim", "shared-all")
    place.until(lambda: cluster.api.get(*claim)["status"]["phase"] == "Bound")
    assert {left.kind for left in leftovers.of_runs(cluster) if left.cost} >= {
        "PersistentVolume",
        "PersistentVolumeClaim",
    }
    gone, stays = storage.left_by(cluster, plan, data=True)
    assert len(gone) == 5
    assert stays == []
    place.until(lambda: not cluster.left())
