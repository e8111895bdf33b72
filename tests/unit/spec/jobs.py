"""Job files for the tests of this room: written to a real directory, loaded by the real reader."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from longboat import spec
from longboat.runtime.plan import Plan, Stage

WIDE_DEEP = """\
# Trains, asks, serves.
longboat: 1
name: wide-deep
params:
  DATASET_DIR:     {value: /datasets, help: input dataset directory, required: true}
  TARGET_ACCURACY: {value: 0.75, help: the model must reach this, required: true}
  RETRY_LIMIT: 10
  STEPS: 1000   # a try
  REGISTRY: example
  IMAGE_SUFFIX: ""
  NFS_SERVER: 10.0.0.1
  REPLICAS: 3
  PORT: 8501
  USER_ID: 1000
presets:
  demo: {STEPS: 200, TARGET_ACCURACY: 0}
code: .
requirements: [numpy>=2, "safetensors"]
image: ${REGISTRY}/wide-deep${IMAGE_SUFFIX}
pull_secrets: regcred
env: {OMP_NUM_THREADS: 1, MODE: fast}
secrets:
  TOKEN: {env: MY_TOKEN}
  KEY: {file: key.txt}
  CLOUD: {secret: cloud, key: token}
storage:
  data:    {path: "${DATASET_DIR}", read_only: true}
  output:  {nfs: {server: "${NFS_SERVER}", path: /exports}}
  scratch: {emptyDir: {}}
  weights: gs://bucket/weights
security: {user: "${USER_ID}", group: 1000, fs_group: 1000, service_account: trainer, annotations: {a: b}}
stages:
  load-test:
    after: serve
    bench: {data: eval.csv, batch: 32, iterations: 40, warm_up: 10}
  train:
    run: python train.py --steps ${STEPS}
    shape: ps
    ranks: {worker: 4, ps: {count: 2, resources: {memory: 2Gi}, env: {PS: 1}, pull_policy: Always}, chief: 1}
    resources: {cpu: 500m, memory: 4Gi, gpu: 1, limits: {memory: 8Gi}}
    timeout: 1h30m
    stall_after: 300
    restarts: 5
    node_selector: {disk: ssd}
    tolerations: [{key: gpu, operator: Exists}]
    pod: {spec: {priorityClassName: high}}
  good-enough:
    gate: {of: train, metric: accuracy, at_least: "${TARGET_ACCURACY}", retries: "${RETRY_LIMIT}"}
  serve:
    after: good-enough
    serve: {model: train, replicas: "${REPLICAS}", port: "${PORT}", expose: NodePort}
"""

SHORT = """\
name: hello
run: echo hello
"""


def write(directory: Path, text: str, name: str = "job.yaml") -> Path:
    path = directory / name
    path.write_text(textwrap.dedent(text), encoding="utf-8", newline="")
    return path


def load(
    directory: Path,
    text: str,
    *,
    sets: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    preset: str | None = None,
    engine: str = "local",
    env_files: Sequence[str] = (),
) -> spec.LoadedJob:
    path = write(directory, text)
    remote = engine != "local"
    return spec.load(path, sets=sets, environ=environ, preset=preset, engine=engine, remote=remote, env_files=env_files)


def planned(directory: Path, text: str, engine: str = "local") -> Plan:
    return load(directory, text, engine=engine).plan()


def stage(directory: Path, body: str, name: str = "train") -> Stage:
    """The one stage of a job, given its lines."""
    text = f"name: job\nstages:\n  {name}:\n" + textwrap.indent(textwrap.dedent(body), "    ")
    return planned(directory, text).stage(name)


def problems(directory: Path, text: str, **options: object) -> tuple[spec.Problem, ...]:
    """All that is wrong with the file."""
    with pytest.raises(spec.JobError) as caught:
        load(directory, text, **options).plan()  # type: ignore[arg-type]
    return caught.value.problems


def problem(directory: Path, text: str, **options: object) -> spec.Problem:
    """The one thing that is wrong with the file."""
    found = problems(directory, text, **options)
    assert len(found) == 1, found
    return found[0]
