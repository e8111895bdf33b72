"""Wide & Deep: a weight for each bucket, summed (wide), and a net over embeddings and numbers (deep); in JAX.

The tables (one row for each bucket of each category) stay in numpy, outside of what JAX compiles: a step looks up the
rows of its batch, JAX gives the gradient of what was looked up, and `Tables.learn` changes those rows and no others. A
gradient the size of the tables never exists.
"""

import itertools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import transform
from jax.sharding import PartitionSpec
from scipy.sparse import csc_array

EMBEDDING = 32
SLOWER = 250
"""Steps until the net's rate begins to fall, as one over the root of the steps; it needs no end to be known."""
LAYERS = (len(transform.CATEGORIES) * EMBEDDING + len(transform.NUMBERS), 1024, 512, 256, 1)


def new_net(seed):
    """Weights and biases of the deep part, by name."""
    rng = np.random.default_rng([seed, 0])
    net = {}
    for number, (width, into) in enumerate(itertools.pairwise(LAYERS)):
        scale = np.sqrt(2 / width) if into > 1 else 0.01
        net[f"weights_{number}"] = (scale * rng.standard_normal((width, into))).astype(np.float32)
        net[f"bias_{number}"] = np.zeros(into, np.float32)
    return net


def deep(net, looked_up, numbers, precision="fp32"):
    """The deep part's logits. looked_up: rows x (26 x 32)."""
    kind = jnp.bfloat16 if precision == "bf16" else jnp.float32
    values = jnp.concatenate((looked_up, numbers), axis=1)
    for number in range(len(LAYERS) - 1):
        weights, bias = net[f"weights_{number}"], net[f"bias_{number}"]
        values = jnp.matmul(values.astype(kind), weights.astype(kind), preferred_element_type=jnp.float32) + bias
        if number < len(LAYERS) - 2:
            values = jax.nn.relu(values)
    return values[:, 0]


@dataclass(frozen=True)
class Tables:
    """Embeddings and wide weights of all buckets, each with the sum of squared gradients that Adagrad divides by."""

    embedding: np.ndarray
    embedding_squares: np.ndarray
    """One number for each row of `embedding`."""
    wide: np.ndarray
    wide_squares: np.ndarray

    @staticmethod
    def new(buckets, seed):
        rows = len(transform.CATEGORIES) * buckets
        embedding = np.random.default_rng([seed, 1]).standard_normal((rows, EMBEDDING), np.float32)
        embedding *= np.float32(0.05)
        none, some, one = (np.full(rows, value, np.float32) for value in (0, 1e-3, 1))
        return Tables(embedding, some, none, one)  # the larger the squares to begin with, the slower the start

    def look_up(self, buckets):
        """(embeddings, rows x (26 x 32); sums of wide weights)."""
        return self.embedding[buckets].reshape(len(buckets), -1), self.wide[buckets].sum(axis=1)

    def learn(self, buckets, embedding_gradient, wide_gradient, rate, wide_rate):
        """One step of Adagrad on the rows that these buckets name; of a row named often, gradients are summed first."""
        flat = buckets.ravel()
        rows, which = np.unique(flat, return_inverse=True)
        count = len(flat)
        gathered = csc_array((np.ones(count, np.float32), which, np.arange(count + 1)), shape=(len(rows), count))
        gradient = gathered @ embedding_gradient.reshape(count, EMBEDDING)
        squares = self.embedding_squares[rows] + np.einsum("re,re->r", gradient, gradient) / np.float32(EMBEDDING)
        self.embedding_squares[rows] = squares
        gradient *= (np.float32(rate) / np.sqrt(squares))[:, None]
        self.embedding[rows] -= gradient
        gradient = gathered @ np.repeat(wide_gradient, buckets.shape[1])
        squares = self.wide_squares[rows] + gradient**2
        self.wide_squares[rows] = squares
        self.wide[rows] -= np.float32(wide_rate) * gradient / np.sqrt(squares)


def new_step(mesh, precision, rate):
    """A compiled step on a batch that is divided among the devices of the mesh, as a function of (net, batch).

    It changes the net by Adam and gives back (net, what all devices found). Of the net that is the gradient's mean over
    the batch; of what was looked up it is each row's own gradient. `weight` is 0 for rows that only fill a batch up;
    `stop` is 1 where a process was asked to stop.
    """

    def gradients(net, batch):
        def loss(net, looked_up, wide):
            logit = deep(net, looked_up, batch["numbers"], precision) + wide
            return jnp.sum(batch["weight"] * (jax.nn.softplus(logit) - batch["labels"] * logit))

        found, (of_net, *of_rows) = jax.value_and_grad(loss, (0, 1, 2))(net, batch["looked_up"], batch["wide"])
        sums = jax.lax.psum((found, jnp.sum(batch["weight"]), jnp.sum(batch["stop"]), of_net), "batch")
        return sums, jax.lax.all_gather(of_rows, "batch", tiled=True)

    divided = jax.shard_map(
        gradients,
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec("batch")),
        out_specs=PartitionSpec(),
        check_vma=False,  # or JAX would sum the gradients by itself, one message each
    )

    def step(state, number, batch):
        (loss, count, stop, of_net), of_rows = divided(state["net"], batch)
        speed = rate / jnp.sqrt(1 + number / SLOWER) * jnp.sqrt(1 - 0.999**number) / (1 - 0.9**number)
        net, mean, square = {}, {}, {}
        for name, gradient in of_net.items():
            gradient = gradient / count
            mean[name] = 0.9 * state["mean"][name] + 0.1 * gradient
            square[name] = 0.999 * state["square"][name] + 0.001 * gradient**2
            net[name] = state["net"][name] - speed * mean[name] / (jnp.sqrt(square[name]) + 1e-8)
        told = {"loss": loss / count, "stop": stop, "of_rows": of_rows}
        return {"net": net, "mean": mean, "square": square}, told

    return jax.jit(step, donate_argnums=0)


def new_prediction(mesh, precision):
    """A compiled function: how likely a click is for each row of a batch that is divided among the devices."""

    def likely(net, batch):
        logit = deep(net, batch["looked_up"], batch["numbers"], precision) + batch["wide"]
        return jax.lax.all_gather(jax.nn.sigmoid(logit), "batch", tiled=True)

    divided = (PartitionSpec(), PartitionSpec("batch"))
    return jax.jit(jax.shard_map(likely, mesh=mesh, in_specs=divided, out_specs=PartitionSpec(), check_vma=False))
