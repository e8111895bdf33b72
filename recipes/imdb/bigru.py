"""An embedding, two bidirectional GRU layers and one output, in plain JAX.

The cells are Keras' (reset gate after the product), so that the arrays are those of a Keras model: keras_file.py
writes them as one. Reviews are read from their end and padded in front. Adam, the rate falling to zero.
"""

import jax
import jax.numpy as jnp
import numpy as np
from features import FIRST_WORD, last_words

RATE = 0.004
LAYERS = ("one", "two")
WAYS = ("forward", "backward")


class BiGru:
    save_every = 20
    """Steps between checkpoints."""

    def __init__(self, features, embedding=64, units=64, length=200):
        self.words, self.embedding, self.units, self.length = FIRST_WORD + len(features.words), embedding, units, length

    def new(self, seed):
        """The weights at which every trainer starts, drawn from the seed."""
        rng = np.random.default_rng([seed, 0])
        arrays = {"embedding": rng.uniform(-0.05, 0.05, (self.words, self.embedding))}
        inputs, width = self.embedding, 3 * self.units
        for layer in LAYERS:
            for way in WAYS:
                arrays[f"{layer} {way} kernel"] = glorot(rng, inputs, width)
                square = [np.linalg.qr(rng.normal(size=(self.units, self.units)))[0] for _ in range(3)]
                arrays[f"{layer} {way} recurrent"] = np.concatenate(square, axis=1)
                arrays[f"{layer} {way} bias"] = np.zeros((2, width))
            inputs = 2 * self.units
        arrays |= {"dense kernel": glorot(rng, inputs, 1), "dense bias": np.zeros(1)}
        return {name: value.astype(np.float32) for name, value in arrays.items()}

    def begin(self, arrays):
        moments = {f"{name} {moment}": np.zeros_like(value) for name, value in arrays.items() for moment in MOMENTS}
        return {**arrays, **moments, "steps": np.zeros(1, np.float32)}

    def arrays(self, state):
        return {name: np.asarray(value) for name, value in weights_of(state).items()}

    def step(self, state, rows, labels, rate, parts, batch):
        """One step of Adam; gives the mean loss. A short last batch is filled up to `batch` with rows of weight 0. The
        number of `parts` changes nothing for a net."""
        ids, fill = last_words(rows, self.length), batch - len(rows)
        weights = np.pad(np.full(len(rows), 1 / len(rows), np.float32), (0, fill))
        ids, labels = np.pad(ids, ((0, fill), (0, 0))), np.pad(labels.astype(np.float32), (0, fill))
        new, loss = adam(weights_of(state), state, ids, labels, weights, np.float32(RATE * rate))
        state.update(new)
        return float(loss)

    def both(self, arrays):
        """A function of ids: the scores of unkind and kind."""
        held = {name: jnp.asarray(value) for name, value in arrays.items()}
        return lambda ids: jax.nn.sigmoid(scores(held, ids)[:, None] * jnp.array([[-1.0, 1.0]]))

    def probabilities(self, arrays, rows):
        """For every row the probability that it is a positive review; 256 rows at a time."""
        ids = last_words(rows, self.length)
        ids = np.pad(ids, ((0, -len(ids) % 256), (0, 0)))
        parts = [positive(arrays, ids[at : at + 256]) for at in range(0, len(ids), 256)]
        return np.concatenate([np.asarray(part) for part in parts])[: len(rows)]


MOMENTS = ("mean", "square")


def weights_of(state):
    """By name, in an order that does not depend on where the state came from."""
    return {name: state[name] for name in sorted(state) if name != "steps" and not name.endswith(MOMENTS)}


def glorot(rng, inputs, outputs):
    most = np.sqrt(6 / (inputs + outputs))
    return rng.uniform(-most, most, (inputs, outputs))


def gru(arrays, name, x):
    """All states of one direction; x and they are (time, review, number)."""
    recurrent, bias = arrays[f"{name} recurrent"], arrays[f"{name} bias"]

    def cell(state, x):
        of_state = state @ recurrent + bias[1]
        (x_update, x_reset, x_new), (s_update, s_reset, s_new) = jnp.split(x, 3, axis=1), jnp.split(of_state, 3, axis=1)
        update, reset = jax.nn.sigmoid(x_update + s_update), jax.nn.sigmoid(x_reset + s_reset)
        state = update * state + (1 - update) * jnp.tanh(x_new + reset * s_new)
        return state, state

    start = jnp.zeros((x.shape[1], recurrent.shape[0]), x.dtype)
    return jax.lax.scan(cell, start, x @ arrays[f"{name} kernel"] + bias[0])[1]


def scores(arrays, ids):
    x = arrays["embedding"][ids.T]
    forward, backward = gru(arrays, "one forward", x), gru(arrays, "one backward", x[::-1])
    x = jnp.concatenate([forward, backward[::-1]], axis=2)
    last = [gru(arrays, "two forward", x)[-1], gru(arrays, "two backward", x[::-1])[-1]]
    return (jnp.concatenate(last, axis=1) @ arrays["dense kernel"] + arrays["dense bias"])[:, 0]


@jax.jit
def positive(arrays, ids):
    return jax.nn.sigmoid(scores(arrays, ids))


@jax.jit
def adam(arrays, state, ids, labels, weights, rate):
    """The state after one step, and the loss before it."""

    def loss_of(arrays):
        sign = 2 * labels - 1
        return jnp.sum(weights * jax.nn.softplus(-sign * scores(arrays, ids)))

    loss, gradients = jax.value_and_grad(loss_of)(arrays)
    length = jnp.sqrt(sum(jnp.sum(g * g) for g in gradients.values()))
    steps, new = state["steps"] + 1, {}
    for name, gradient in gradients.items():
        gradient = gradient / jnp.maximum(length, 1)  # a review that surprises must not throw the weights far
        mean = 0.9 * state[f"{name} mean"] + 0.1 * gradient
        square = 0.999 * state[f"{name} square"] + 0.001 * gradient * gradient
        change = mean / (1 - 0.9**steps) / (jnp.sqrt(square / (1 - 0.999**steps)) + 1e-7)
        new |= {name: arrays[name] - rate * change, f"{name} mean": mean, f"{name} square": square}
    return new | {"steps": steps}, loss
