"""The quantum convolutional network: eight qubits, simulated as a state vector, in plain JAX.

A cluster state (H on every qubit, CZ around the ring) with one qubit excited by rx(theta) goes through three
stages. Each convolves neighbours with one two-qubit gate of 15 weights, then pools half of its qubits into the other
half with one two-qubit gate of 6 weights: 63 weights. The prediction is the mean of Z on the last qubit.

Every gate of a layer is the same 4x4 matrix, so it is built once a step from its rotations, and two of them at a time
are put on four qubits as one 16x16 matrix. The second and third stage touch four qubits only and are the same for
every example: they become one 16x16 matrix. Complex numbers are pairs of reals (an axis of length 2 before the
qubits), so that the work is seven products of real matrices; the examples are the last axis, which keeps every
transposition a copy of whole rows.
"""

import jax
import jax.numpy as jnp
import numpy as np

QUBITS = 8
WEIGHTS = 63
UNSEEN = np.array([20, 41, 62])
"""Phases of a pooled qubit just before it is let go: no measurement sees them, so their gradient is exactly zero."""

X = np.array([[0, 1], [1, 0]], np.complex64)
Y = np.array([[0, -1j], [1j, 0]], np.complex64)
Z = np.array([[1, 0], [0, -1]], np.complex64)
PAULI = np.stack([X, Y, Z])
PAIRS = np.stack([np.kron(pauli, pauli) for pauli in (Z, Y, X)])
CNOT = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]], np.complex64)


def excitations(count, rng):
    """Which qubit is excited, by which angle, and the label: +1 for a small angle, -1 for a large one."""
    qubit = np.resize(np.arange(QUBITS), count)
    theta = rng.uniform(-np.pi, np.pi, count)
    return {"qubit": qubit, "theta": theta, "label": np.where(abs(theta) <= np.pi / 2, 1.0, -1.0)}


def power(gate, exponent):
    """gate ** exponent for gates that are their own inverse; a stack of them at a time."""
    turn = jnp.exp(1j * jnp.pi * exponent)[..., None, None]
    return (1 + turn) / 2 * np.eye(gate.shape[-1], dtype=np.complex64) + (1 - turn) / 2 * gate


def kron(a, b):
    """Two gates side by side; a stack of them at a time."""
    side = a.shape[-1] * b.shape[-1]
    return jnp.einsum("...ij,...kl->...ikjl", a, b).reshape(*a.shape[:-2], side, side)


def gates(weights):
    """The 4x4 matrices of the three convolutions and of the three poolings.

    A stage's weights: 3 + 3 turn the two qubits, 3 couple them (ZZ, YY, XX), 3 + 3 turn them again; then 3 turn the
    sink of a pooling (and turn it back after its CNOT) and 3 its source.
    """
    weights = jnp.asarray(weights)
    weights = weights.at[UNSEEN].set(jax.lax.stop_gradient(weights[UNSEEN])).reshape(3, 21)
    angles = jnp.concatenate([weights[:, :6], weights[:, 9:]], axis=1).reshape(3, 6, 3)
    turns = power(PAULI, angles)
    turn = jnp.moveaxis(turns[:, :, 2] @ turns[:, :, 1] @ turns[:, :, 0], 1, 0)
    couple = jnp.moveaxis(power(PAIRS, weights[:, 6:9]), 1, 0)
    convolution = kron(turn[2], turn[3]) @ couple[2] @ couple[1] @ couple[0] @ kron(turn[0], turn[1])
    sink, source = turn[4], turn[5]
    back = kron(jnp.broadcast_to(np.eye(2, dtype=np.complex64), sink.shape), sink.conj().swapaxes(1, 2))
    return convolution, back @ CNOT @ kron(source, sink)


def act(matrix, state, qubits):
    """A complex matrix on some qubits of a state: axes are real and imaginary part, the qubits, the examples."""
    block = jnp.block([[matrix.real, -matrix.imag], [matrix.imag, matrix.real]])
    axes = [0, *(1 + qubit for qubit in qubits)]
    front = range(len(axes))
    state = jnp.moveaxis(state, axes, front)
    return jnp.moveaxis((block @ state.reshape(len(block), -1)).reshape(state.shape), front, axes)


def stage(convolution, pooling, state, qubits):
    """A convolution around the ring of qubits, then the first half of them pooled into the second."""
    half = len(qubits) // 2
    ring = [*qubits, qubits[0]]
    for first in (*range(0, len(qubits), 2), *range(1, len(qubits), 2)):
        state = act(convolution, state, ring[first : first + 2])
    for source, sink in zip(qubits[:half], qubits[half:], strict=True):
        state = act(pooling, state, (source, sink))
    return state


def cluster_states():
    """The cluster state, and for each qubit the cluster state with that qubit flipped (all of them real)."""
    number = np.arange(2**QUBITS)
    bits = number[:, None] >> np.arange(QUBITS)[::-1] & 1
    plain = (-1.0) ** np.sum(bits * np.roll(bits, -1, axis=1), axis=1) / 2 ** (QUBITS / 2)
    flipped = np.stack([plain[number ^ 1 << (QUBITS - 1 - qubit)] for qubit in range(QUBITS)], axis=1)
    return plain.astype(np.float32), flipped.astype(np.float32)


def final_state(weights, qubit, theta):
    """The state of each example after all layers, as real and imaginary part, qubits, examples."""
    (convolution, *later), (pooling, *later_pooling) = gates(weights)
    plain, flipped = cluster_states()  # rx(theta) = cos(theta / 2) - i sin(theta / 2) X
    state = jnp.stack(
        [jnp.cos(theta / 2) * plain[:, None], -jnp.sin(theta / 2) * jnp.take(flipped, qubit, axis=1)]
    ).reshape(2, *[2] * QUBITS, -1)

    two = kron(convolution, convolution)
    for four in ((0, 1, 2, 3), (4, 5, 6, 7), (1, 2, 3, 4), (5, 6, 7, 0)):
        state = act(two, state, four)
    two = kron(pooling, pooling)
    for four in ((0, 4, 1, 5), (2, 6, 3, 7)):
        state = act(two, state, four)

    rest = jnp.stack([np.eye(16, dtype=np.float32), np.zeros((16, 16), np.float32)]).reshape(2, 2, 2, 2, 2, 16)
    rest = stage(later[0], later_pooling[0], rest, (0, 1, 2, 3))
    rest = stage(later[1], later_pooling[1], rest, (2, 3)).reshape(2, 16, 16)
    return act(jax.lax.complex(rest[0], rest[1]), state, (4, 5, 6, 7))


def predictions(weights, qubit, theta):
    """The mean of Z on the last qubit, for each example."""
    up, down = jnp.moveaxis(final_state(weights, qubit, theta) ** 2, QUBITS, 0)
    return jnp.sum(up - down, axis=range(QUBITS))


def squared_errors(weights, qubit, theta, label):
    return (predictions(weights, qubit, theta) - label) ** 2


def evaluate(weights, examples, chunk=256):
    """What the network predicts for any number of examples, in pieces of one size: one program, little memory."""
    count = len(examples["theta"])
    found = []
    for first in range(0, count, chunk):
        part = [np.resize(examples[name][first : first + chunk], chunk) for name in ("qubit", "theta")]
        found.append(np.asarray(_compiled(weights, *part))[: count - first])
    return np.concatenate(found)


_compiled = jax.jit(predictions)


def scores(predicted, label):
    """Mean squared error, and the share of examples whose sign is right."""
    return float(np.mean((predicted - label) ** 2)), float(np.mean(np.sign(predicted) == label))
