"""How fast the quantum convolutional network is computed, beside other simulators of the same circuit.

All contenders get one draw and must agree on its loss and gradient. Their processes stay up between the turns, asleep:
importing and compiling is not what is measured.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.harness import Bench, Contender, Target
from bench.places import PROGRAMS, PYTHON, environment_of

BATCH = 32
SECONDS = 2.0
OWN, SINGLE = "recipes/qcnn, double precision (its default)", "recipes/qcnn, single precision"
TENSORCIRCUIT, TFQ = "tensorcircuit-ng on JAX, single precision", "tensorflow-quantum 0.7.6, single precision"


class Simulator:
    """A contender's process, started when it is first asked."""

    def __init__(self, name: str, python: Callable[[], str], answers: dict[str, list[float]]) -> None:
        self._name, self._python, self._answers = name, python, answers
        self._process: subprocess.Popen[str] | None = None

    def once(self) -> float:
        if self._process is None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    def _start(self) -> subprocess.Popen[str]:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(draw(), file)
            file.flush()
            command = [self._python(), str(PROGRAMS / "qcnn_contender.py"), self._name, file.name, str(SECONDS)]
            env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
            with contextlib.ExitStack() as stack:
                log = stack.enter_context(tempfile.TemporaryFile("w+"))
                process = subprocess.Popen(
                    command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
                )
                assert process.stdout is not None
                said = process.stdout.readline()
                if not said:
                    log.seek(0)
                    raise SystemExit(f"{' '.join(command)}\nended with {process.wait()}:\n{log.read()[-3000:]}")
        self._answers[self._name] = json.loads(said)
        for name, answer in self._answers.items():
            if not all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(answer, json.loads(said), strict=True)):
                raise SystemExit(f"{name} and {self._name} disagree on loss and gradient: {answer}, {said.strip()}")
        return process


def draw() -> dict[str, list[float]]:
    """Weights and a batch of examples, always the same."""
    chance = random.Random(5)
    theta = [chance.uniform(-math.pi, math.pi) for _ in range(BATCH)]
    return {
        "weights": [chance.uniform(0, 2) for _ in range(63)],
        "qubit": [number % 8 for number in range(BATCH)],
        "theta": theta,
        "label": [1 if abs(angle) <= math.pi / 2 else -1 for angle in theta],
    }


def qcnn() -> Bench:
    answers: dict[str, list[float]] = {}

    def contender(title: str, name: str, python: Callable[[], str]) -> Contender:
        return Contender(title, Simulator(name, python, answers).once)

    def of(lock: str) -> Callable[[], str]:
        return lambda: str(Path(environment_of(lock)) / "python")

    return Bench(
        "qcnn",
        f"The quantum convolutional network, forward and backward, batches of {BATCH}: time for one circuit "
        "(1,000,000 / it is circuits/s). All agree on loss and gradient.",
        "us",
        (
            contender(OWN, "longboat-double", lambda: PYTHON),
            contender(SINGLE, "longboat", lambda: PYTHON),
            contender(TENSORCIRCUIT, "tensorcircuit", of("quantum")),
            contender(TFQ, "tfq", of("tensorflow-quantum")),
        ),
        (
            Target("at least 30x tensorflow-quantum's circuits/s", OWN, lambda s: s[TFQ].median / 30),
            Target("aim 60x", OWN, lambda s: s[TFQ].median / 60, aim=True),
            Target("no slower than tensorcircuit-ng", OWN, lambda s: s[TENSORCIRCUIT].median),
        ),
    )
