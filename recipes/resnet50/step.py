"""One step of training: the gradient of a batch, its mean over all ranks, and what is done with it.

All that ranks tell each other in a step (gradient, statistics of the normalisations, loss, hits) is one row of numbers,
summed by one message: through JAX inside the compiled step, or through MPI between its two halves.
"""

from functools import partial

import jax
import jax.numpy as jnp
import model
import numpy as np
import operations
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec

MOMENTUM = 0.9
DECAY = 1e-4
SMOOTHING = 0.1
REMEMBERED = 0.9
"""Share of the running statistics that a step leaves as it is."""
KINDS = {"fp32": jnp.float32, "bf16": jnp.bfloat16}


def new_state(seed, width, classes, blocks=model.BLOCKS):
    weights, statistics = model.new(seed, width, classes, blocks)
    velocity = {name: np.zeros_like(value) for name, value in weights.items()}
    return {"weights": weights, "velocity": velocity, "statistics": statistics}


def rate_at(epoch, batch, base=0.128, warm_up=5, drops=(30, 60, 80, 90)):
    """The learning rate: base for 256 images, in proportion for others; rising at first, then a tenth at each drop."""
    rate = base * batch / 256
    if epoch < warm_up:
        return rate * epoch / warm_up
    return rate * 0.1 ** sum(epoch >= drop for drop in drops)


def losses(scores, labels):
    """Cross-entropy of each image against its label, of which SMOOTHING is spread over all classes."""
    logs = jax.nn.log_softmax(scores)
    hit = jnp.take_along_axis(logs, labels[:, None], axis=1)[:, 0]
    return -(1 - SMOOTHING) * hit - SMOOTHING * jnp.mean(logs, axis=1)


def found_in(state, pixels, labels, stop, ops, kind):
    """What one device finds in its share of a batch, and whether its rank was asked to stop."""

    def loss_of(weights):
        scores, statistics = model.scores(weights, state["statistics"], pixels, ops, kind, train=True)
        hits = jnp.mean(jnp.argmax(scores, axis=1) == labels)
        return jnp.mean(losses(scores, labels)), (statistics, hits)

    (loss, (statistics, hits)), gradient = jax.value_and_grad(loss_of, has_aux=True)(state["weights"])
    return {"gradient": gradient, "statistics": statistics, "told": {"loss": loss, "top1": hits, "stop": stop[0]}}


def moved(state, found, rate):
    """The state after a step of SGD with momentum and weight decay."""

    def velocity(name):
        decay = DECAY * state["weights"][name] if model.decays(name) else 0
        return MOMENTUM * state["velocity"][name] + found["gradient"][name] + decay

    faster = {name: velocity(name) for name in state["weights"]}
    weights = {name: value - rate * faster[name] for name, value in state["weights"].items()}
    statistics = {
        name: REMEMBERED * value + (1 - REMEMBERED) * found["statistics"][name]
        for name, value in state["statistics"].items()
    }
    return {"weights": weights, "velocity": faster, "statistics": statistics}


def new_step(mesh, ops, kind, sum_over_ranks=None, ranks=1):
    """step(state, pixels, labels, stop, rate) -> (state, what was told), the batch divided among the mesh's devices.

    stop: for each device, 1 if its rank was asked to stop; its mean is told to all, like that of loss and hits.
    sum_over_ranks: sums a row of numbers over all ranks where JAX does not know of them (MPI); None where it does.
    """

    def find(*given):
        return found_in(*given, ops, kind)

    def flat_mean(*given):
        return jax.lax.psum(ravel_pytree(find(*given))[0], "batch") / mesh.size

    def mean_found(*given):
        """In one message, where there is anybody to send it to."""
        if mesh.size == 1:
            return find(*given)
        whole, split = PartitionSpec(), PartitionSpec("batch")
        told = {"mesh": mesh, "in_specs": (whole, split, split, split), "out_specs": whole, "check_vma": False}
        return row_to(jax.eval_shape(find, *given))(jax.shard_map(flat_mean, **told)(*given))

    @partial(jax.jit, donate_argnums=0)
    def step_in_one(state, pixels, labels, stop, rate):
        found = mean_found(state, pixels, labels, stop)
        return moved(state, found, rate), found["told"]

    @jax.jit
    def first_half(*given):
        return ravel_pytree(mean_found(*given))[0]

    @partial(jax.jit, donate_argnums=0)
    def second_half(state, row, rate):
        told = dict.fromkeys(("loss", "top1", "stop"), jnp.zeros(()))
        found = row_to({"gradient": state["weights"], "statistics": state["statistics"], "told": told})(row / ranks)
        return moved(state, found, rate), found["told"]

    def step_in_two(state, pixels, labels, stop, rate):
        row = np.array(first_half(state, pixels, labels, stop))
        return second_half(state, sum_over_ranks(row), rate)

    return step_in_two if sum_over_ranks else step_in_one


def row_to(shapes):
    """Makes of a row of numbers what `ravel_pytree` made it of."""
    leaves, tree = jax.tree.flatten(shapes)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]

    def unravel(row):
        parts = jnp.split(row, ends)
        return jax.tree.unflatten(tree, [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)])

    return unravel


def new_evaluation(kind):
    """evaluate(state, pixels, labels) -> how many images are right at once, and in five; labels of -1 do not count."""
    ops = operations.Plain()

    @jax.jit
    def evaluate(state, pixels, labels):
        scores, _ = model.scores(state["weights"], state["statistics"], pixels, ops, kind)
        better = jnp.sum(scores > jnp.take_along_axis(scores, labels[:, None], axis=1), axis=1)
        counts = labels >= 0
        return jnp.stack([jnp.sum(counts & (better < 1)), jnp.sum(counts & (better < 5))])

    return evaluate
