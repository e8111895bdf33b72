"""The quantum convolutional network in Cirq, gate by gate and with no trick: what the recipe's circuit is held against.

`python qcnn_cirq.py FILE.json` reads a draw (weights, qubit, theta) and writes into the same file the final state, the
prediction and the gradient of each example, in double precision, the gradient by differences of the exact expectation.
tests/recipes/qcnn_cirq.json was made this way. Needs cirq-core alone.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import Any

import cirq
import numpy as np


def cluster(qubits: Sequence[Any]) -> Any:
    ring = zip(qubits, [*qubits[1:], qubits[0]], strict=True)
    return cirq.Circuit([cirq.H.on_each(*qubits), [cirq.CZ(*pair) for pair in ring]])


def turn(qubit: Any, weights: Sequence[Any]) -> Any:
    return cirq.Circuit(gate(qubit) ** weight for gate, weight in zip((cirq.X, cirq.Y, cirq.Z), weights, strict=True))


def convolve(first: Any, second: Any, weights: Sequence[Any]) -> Any:
    circuit = turn(first, weights[0:3]) + turn(second, weights[3:6])
    for gate, weight in zip((cirq.ZZ, cirq.YY, cirq.XX), weights[6:9], strict=True):
        circuit.append(gate(first, second) ** weight)
    return circuit + turn(first, weights[9:12]) + turn(second, weights[12:15])


def pool(source: Any, sink: Any, weights: Sequence[Any]) -> Any:
    there = turn(sink, weights[0:3])
    return there + turn(source, weights[3:6]) + cirq.Circuit(cirq.CNOT(source, sink)) + there**-1


def model(qubits: Sequence[Any], weights: Sequence[Any]) -> Any:
    circuit = cirq.Circuit()
    for number in range(3):
        own = weights[21 * number : 21 * number + 21]
        left = list(qubits[8 - 8 // 2**number :])
        half = len(left) // 2
        for pair in (*zip(left[0::2], left[1::2], strict=True), *zip(left[1::2], [*left[2::2], left[0]], strict=True)):
            circuit += convolve(*pair, own[:15])
        for source, sink in zip(left[:half], left[half:], strict=True):
            circuit += pool(source, sink, own[15:])
    return circuit


def final_state(weights: Sequence[float], qubit: int, theta: float) -> Any:
    qubits = cirq.LineQubit.range(8)
    whole = cluster(qubits) + cirq.Circuit(cirq.rx(theta)(qubits[qubit])) + model(qubits, list(weights))
    return cirq.Simulator(dtype=np.complex128).simulate(whole, qubit_order=qubits).final_state_vector


def expectation(state: Any) -> float:
    odd = np.arange(len(state)) & 1
    return float(np.sum(np.abs(state) ** 2 * (1 - 2 * odd)))


def gradient(weights: Sequence[float], qubit: int, theta: float) -> list[float]:
    """Fourth-order differences: with doubles their error is far below single precision."""
    found = []
    size = 1e-3
    for number in range(len(weights)):
        value = 0.0
        for shift, factor in ((-2, 1), (-1, -8), (1, 8), (2, -1)):
            moved = list(weights)
            moved[number] += shift * size
            value += factor * expectation(final_state(moved, qubit, theta))
        found.append(value / (12 * size))
    return found


def main() -> None:
    with open(sys.argv[1]) as file:
        draw = json.load(file)
    found = []
    for qubit, theta in zip(draw["qubit"], draw["theta"], strict=True):
        state = final_state(draw["weights"], qubit, theta)
        if not math.isclose(float(np.linalg.norm(state)), 1, rel_tol=1e-9):
            raise SystemExit("the state is not of length 1")
        found.append(
            {
                "state": [[round(value.real, 9), round(value.imag, 9)] for value in state.tolist()],
                "prediction": expectation(state),
                "gradient": [round(value, 9) for value in gradient(draw["weights"], qubit, theta)],
            }
        )
    with open(sys.argv[1], "w") as file:
        json.dump({**draw, "found": found}, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
