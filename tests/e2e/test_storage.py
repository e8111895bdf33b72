"""Storage of runs in a cluster: looked into with no pod of the run there, made where there is none, and kept."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e import jobs
from tests.e2e.place import WINDLASS, Place
from windlass.kube import names

pytestmark = pytest.mark.slow

WRITE = """python3 -c "
import hashlib, os
data = os.urandom(30_000_000)
for place in (os.environ['WINDLASS_MOUNT_KEPT'], os.environ['WINDLASS_OUTPUT_DIR']):
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
    assert "30.0 MB  storage/kept/weights.bin" in place.windlass("ls", f"{run}:kept", *there)
    place.windlass("cp", f"{run}:storage/kept/weights.bin", tmp_path, *there)
    place.windlass("cp", f"{run}:output", tmp_path / "results", *there)
    assert sha(tmp_path / "weights.bin") == wanted
    assert sha(tmp_path / "results" / "main" / "weights.bin") == wanted
    place.windlass("cp", tmp_path / "results", f"{run}:kept/", *there)
    place.windlass("cp", tmp_path / "weights.bin", f"{run}:output/main/again.bin", *there)
    (tmp_path / "weights.bin").unlink()
    place.windlass("cp", f"{run}:kept/results/main/weights.bin", tmp_path, *there)
    place.windlass("cp", f"{run}:output/main/again.bin", tmp_path / "again.bin", *there)
    assert {sha(tmp_path / "weights.bin"), sha(tmp_path / "again.bin")} == {wanted}
    said = place.windlass("cat", f"{run}:kept/wieghts.bin", *there, code=2)
    assert f"did you mean {run}:storage/kept/weights.bin?" in said
    assert helpers(place, run) == []

    (tmp_path / "weights.bin").unlink()
    words = [*WINDLASS, "cp", f"{run}:kept/weights.bin", str(tmp_path), *there]
    copier = subprocess.Popen(
        words,
        env={**os.environ, "WINDLASS_HOME": str(place.home)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509 (see test_reading)
    )
    place.until(lambda: helpers(place, run) or copier.poll() is not None)
    copier.send_signal(signal.SIGINT)
    assert copier.wait() == 130
    assert list(tmp_path.glob("*weights*")) == [], "neither under its name nor beside it"
    assert helpers(place, run) == []
