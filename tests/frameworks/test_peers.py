"""Scripts that know nothing of Longboat find their peers: PyTorch, and TensorFlow in both of its ways.

`make frameworks` runs this; it installs the frameworks (7 GB) below .bench first. JAX and MPI are in `make test`.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from bench.places import LONGBOAT, environment, environment_of

TORCH = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
number = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(number)
print("sum", number.item(), "of", dist.get_world_size())
dist.destroy_process_group()
"""

MIRRORED = """
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
rank = strategy.cluster_resolver.task_id

@tf.function
def total():
    return tf.distribute.get_replica_context().all_reduce("sum", tf.constant(rank + 1.0))

print("sum", float(strategy.run(total)), "of", strategy.num_replicas_in_sync)
"""

SERVERS = """
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    ).join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    count = tf.Variable(0.0)

@tf.function
def add():
    count.assign_add(1.0)

for _ in range(6):
    coordinator.schedule(add)
coordinator.join()
print("sum", float(count.read_value()))
"""


@pytest.mark.parametrize(
    ("lock", "script", "stage", "says"),
    [
        ("bench", TORCH, {"shape": "allreduce", "ranks": 3}, "sum 6.0 of 3"),
        ("tensorflow", MIRRORED, {"shape": "allreduce", "ranks": 2}, "sum 3.0 of 2"),
        ("tensorflow", SERVERS, {"shape": "ps", "ranks": {"chief": 1, "worker": 2, "ps": 2}}, "sum 6.0"),
    ],
    ids=["torch", "tensorflow-mirrored", "tensorflow-parameter-servers"],
)
def test_a_bare_script_finds_its_peers(
    lock: str, script: str, stage: dict[str, object], says: str, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(script)
    job = {"name": "bare", "run": "python script.py", "python": str(environment_of(lock).parent), "grace": 2, **stage}
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    command = [LONGBOAT, "run", str(tmp_path)]
    done = subprocess.run(
        command, env=environment(tmp_path / "home"), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert says in done.stderr
