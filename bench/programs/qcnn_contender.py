"""One simulator of the quantum convolutional network: `python qcnn_contender.py NAME DRAW.json SECONDS`.

Prints the loss and the norm of its gradient for the draw, so that the contenders can be compared; then, for each line
on stdin, microseconds a circuit, forward and backward: the median of the batches that fit into SECONDS.
NAME: longboat and longboat-double (the recipe's circuit.py in both precisions), tensorcircuit (the same fused gates
on tensorcircuit-ng), tfq (the circuit gate by gate on tensorflow-quantum). Each runs in an environment of its own.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

RECIPE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../recipes/qcnn")

Draw = dict[str, Any]
Answer = tuple[float, Any]
"""Loss and gradient."""


def longboat(draw: Draw) -> Callable[[], Answer]:
    sys.path.insert(0, RECIPE)
    import circuit
    import jax.numpy as jnp

    def loss(weights: Any, qubit: Any, theta: Any, label: Any) -> Any:
        return jnp.mean(circuit.squared_errors(weights, qubit, theta, label))

    return jax_step(loss, draw)


def longboat_double(draw: Draw) -> Callable[[], Answer]:
    import jax

    jax.config.update("jax_enable_x64", True)
    return longboat(draw)


def tensorcircuit(draw: Draw) -> Callable[[], Answer]:
    sys.path.insert(0, RECIPE)
    import circuit
    import jax
    import jax.numpy as jnp
    import tensorcircuit as tc

    tc.set_backend("jax")
    plain, flipped = circuit.cluster_states()
    ring = ((0, 1, 2, 3, 4, 5, 6, 7, 0), (4, 5, 6, 7, 4), (6, 7, 6))

    def one(convolutions: Any, poolings: Any, qubit: Any, theta: Any) -> Any:
        state = jnp.cos(theta / 2) * plain - 1j * jnp.sin(theta / 2) * jnp.take(flipped, qubit, axis=1)
        c = tc.Circuit(8, inputs=state)
        for convolution, pooling, qubits in zip(convolutions, poolings, ring, strict=True):
            count = len(qubits) - 1
            for first in (*range(0, count, 2), *range(1, count, 2)):
                c.any(*qubits[first : first + 2], unitary=convolution)
            for source in range(count // 2):
                c.any(qubits[source], qubits[source + count // 2], unitary=pooling)
        return jnp.real(c.expectation_ps(z=[7]))

    def loss(weights: Any, qubit: Any, theta: Any, label: Any) -> Any:
        convolutions, poolings = circuit.gates(weights)
        found = jax.vmap(one, in_axes=(None, None, 0, 0))(list(convolutions), list(poolings), qubit, theta)
        return jnp.mean((found - label) ** 2)

    return jax_step(loss, draw)


def jax_step(loss: Any, draw: Draw) -> Callable[[], Answer]:
    import jax

    step = jax.jit(jax.value_and_grad(loss))
    weights, theta, label = (jax.numpy.asarray(draw[name], float) for name in ("weights", "theta", "label"))
    qubit = jax.numpy.asarray(draw["qubit"], "int32")

    def once() -> Answer:
        found: Answer = jax.block_until_ready(step(weights, qubit, theta, label))
        return found

    return once


def tfq(draw: Draw) -> Callable[[], Answer]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import cirq
    import sympy
    import tensorflow as tf
    import tensorflow_quantum as quantum

    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import qcnn_cirq

    symbols = sympy.symbols("w0:63")
    qubits = cirq.GridQubit.rect(1, 8)
    cluster, model = qcnn_cirq.cluster(qubits), qcnn_cirq.model(qubits, symbols)
    inputs = [cirq.Circuit(cirq.rx(theta)(qubits[at])) for at, theta in zip(draw["qubit"], draw["theta"], strict=True)]
    excited = quantum.convert_to_tensor(inputs)
    label = tf.constant(draw["label"], tf.float32)
    weights = tf.Variable(draw["weights"], dtype=tf.float32)
    add, ask = quantum.layers.AddCircuit(), quantum.layers.Expectation()
    whole = add(add(excited, prepend=cluster), append=model)
    names = [symbol.name for symbol in symbols]

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> Any:
        with tf.GradientTape() as tape:
            values = tf.tile(weights[None], (len(inputs), 1))
            found = ask(whole, symbol_names=names, symbol_values=values, operators=cirq.Z(qubits[7]))
            loss = tf.reduce_mean((found[:, 0] - label) ** 2)
        return loss, tape.gradient(loss, weights)

    def once() -> Answer:
        loss, gradient = step()
        return float(loss), gradient.numpy()

    return once


CONTENDERS: dict[str, Callable[[Draw], Callable[[], Answer]]] = {
    "longboat": longboat,
    "longboat-double": longboat_double,
    "tensorcircuit": tensorcircuit,
    "tfq": tfq,
}


def main() -> None:
    name, path, seconds = sys.argv[1:]
    with open(path) as file:
        draw = json.load(file)
    once = CONTENDERS[name](draw)
    loss, gradient = once()
    print(json.dumps([float(loss), float(np.linalg.norm(np.asarray(gradient)))]), flush=True)
    for _ in sys.stdin:
        times = []
        over = time.perf_counter() + float(seconds)
        while time.perf_counter() < over:
            begun = time.perf_counter()
            once()
            times.append(time.perf_counter() - begun)
        print(statistics.median(times) / len(draw["theta"]) * 1e6, flush=True)


if __name__ == "__main__":
    main()
