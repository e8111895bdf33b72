"""The recipe's circuit against Cirq itself, on a draw that no file of numbers was made for (`make frameworks`)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from bench.places import PROGRAMS, environment_of

RECIPE = Path(__file__).parents[2] / "recipes/qcnn"
OURS = """
import json, sys
import jax, numpy as np
jax.config.update("jax_enable_x64", True)
sys.path.insert(0, sys.argv[1])
import circuit
draw = json.load(open(sys.argv[2]))
given = [np.array(draw[name]) for name in ("weights", "qubit", "theta")]
state = np.asarray(jax.jit(circuit.final_state)(*given)).reshape(2, 256, -1)
gradient = np.asarray(jax.jit(jax.jacrev(circuit.predictions))(*given))
print(json.dumps([state.T.tolist(), gradient.tolist()]))
"""


def test_states_and_gradients_are_those_that_cirq_finds(tmp_path: Path) -> None:
    chance = np.random.default_rng(2026)
    draw = {
        "weights": chance.uniform(0, 2, 63).tolist(),
        "qubit": list(range(8)),
        "theta": chance.uniform(-np.pi, np.pi, 8).tolist(),
    }
    file = tmp_path / "draw.json"
    file.write_text(json.dumps(draw))
    ours = subprocess.run([sys.executable, "-c", OURS, str(RECIPE), str(file)], capture_output=True, check=True)
    states, gradients = json.loads(ours.stdout)
    subprocess.run([str(environment_of("quantum") / "python"), str(PROGRAMS / "qcnn_cirq.py"), str(file)], check=True)
    found = json.loads(file.read_text())["found"]
    np.testing.assert_allclose(states, [example["state"] for example in found], atol=2e-9)
    np.testing.assert_allclose(gradients, [example["gradient"] for example in found], atol=2e-8)
