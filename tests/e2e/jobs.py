"""Job files of the tests on a cluster."""

from __future__ import annotations

import os

PYTHON = os.environ.get("LONGBOAT_TEST_IMAGE", "longboat.test/python:1")
MPI = os.environ.get("LONGBOAT_TEST_MPI_IMAGE", "longboat.test/mpi:1")


GO = "/tmp/go"
"""What a worker that is held waits for, in its pod."""


def gang(
    steps: int = 60, pause: float = 0.1, ranks: int = 3, extra: str = "", undisturbed: int = 1, held: bool = False
) -> str:
    """Workers that train in step, with programs/gang_sgd.py. Generations before `undisturbed` stop half-way for good;
    with `held` they do until they are let go."""
    return f"""
name: gang
image: {PYTHON}
{extra}
stages:
  train:
    run: python3 gang_sgd.py
    shape: allreduce
    ranks: {ranks}
    env: {{STEPS: "{steps}", PAUSE: "{pause}", UNDISTURBED: "{undisturbed}", GO: "{GO if held else ""}"}}
    resources: {{cpu: 0.05, memory: 48Mi}}
"""


def single(run: str, extra: str = "", image: str = PYTHON) -> str:
    return f"""
name: one
image: {image}
stages:
  main:
    run: {run}
{extra}
"""


CHAIN = f"""
name: chain
image: {PYTHON}
stages:
  servers:
    shape: ps
    ranks: {{worker: 2, ps: 1}}
    run: python3 meet_by_name.py
  average:
    after: servers
    shape: average
    ranks: 2
    rounds: 2
    restarts: 0
    run: echo "round $LONGBOAT_ROUND worker $LONGBOAT_RANK" >> $LONGBOAT_OUTPUT_DIR/part-$LONGBOAT_RANK
    merge: cat $LONGBOAT_OUTPUT_DIR/part-* > $LONGBOAT_OUTPUT_DIR/merged
  last:
    after: average
    run: |
      cat $LONGBOAT_INPUT_AVERAGE/merged > $LONGBOAT_OUTPUT_DIR/seen
      id -u
      python3 -c "import longboat; longboat.report(step=1, accuracy=0.9)"
  good-enough:
    gate: {{of: last, metric: accuracy, at_least: 0.8}}
"""
