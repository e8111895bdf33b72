"""Learns to tell three spiral arms apart: data-parallel training in plain JAX.

Every process draws the same points and the same batches from the seed, and computes its own slice of
each batch. The loss is the mean over the whole batch, so JAX sums the gradients over all processes: any
number of processes walks the same path as one, but for rounding. Rank 0 saves the state every 100 steps; a
new life of the gang goes on from there, with the same bits. Also runs alone: `python train.py`.
"""

import argparse
import os
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import longboat


def spirals(count, rng):
    """Points of three noisy spiral arms, and the arm that each belongs to."""
    arm = rng.integers(3, size=count)
    radius = np.sqrt(rng.uniform(0.01, 1.0, count))
    angle = 8 * radius + 2 * np.pi / 3 * arm + rng.normal(0, 0.35, count)
    points = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return points.astype(np.float32), arm.astype(np.int32)


def new_network(sizes, rng):
    """Weights and biases of a multi-layer perceptron."""
    network = {}
    for layer, (inputs, outputs) in enumerate(pairwise(sizes), start=1):
        network[f"weights{layer}"] = rng.normal(0, np.sqrt(2 / inputs), (inputs, outputs)).astype(np.float32)
        network[f"biases{layer}"] = np.zeros(outputs, np.float32)
    return network


def scores(network, x):
    x = jax.nn.relu(x @ network["weights1"] + network["biases1"])
    x = jax.nn.relu(x @ network["weights2"] + network["biases2"])
    return x @ network["weights3"] + network["biases3"]


def mean_loss(network, x, arm):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(scores(network, x)), arm[:, None], axis=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=256, help="points in a batch, over all processes")
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--hidden", type=int, default=64, help="width of the two hidden layers")
    parser.add_argument("--points", type=int, default=6000, help="points to train on")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    if int(os.environ.get("NUM_PROCESSES", "1")) > 1:
        jax.distributed.initialize()
    rank, world, devices = jax.process_index(), jax.process_count(), jax.devices()
    if args.batch % len(devices):
        raise SystemExit(f"--batch {args.batch} cannot be divided among {len(devices)} devices")
    print(f"process {rank} of {world}, {jax.local_device_count()} of {len(devices)} devices", flush=True)

    x, arm = spirals(args.points, np.random.default_rng([args.seed, 0]))
    held_out_x, held_out_arm = spirals(4000, np.random.default_rng([args.seed, 1]))  # never trained on
    network = new_network([2, args.hidden, args.hidden, 3], np.random.default_rng([args.seed, 2]))
    flat, unflatten = ravel_pytree(network)  # one vector, so that one message a step carries the gradient

    @jax.jit
    def train_step(state, step, x, arm):
        """One step of Adam, the learning rate falling to zero in a straight line."""
        flat, mean, square = state
        loss, gradient = jax.value_and_grad(lambda flat: mean_loss(unflatten(flat), x, arm))(flat)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        rate = args.learning_rate * (1 - (step - 1) / args.steps) * jnp.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        return (flat - rate * mean / (jnp.sqrt(square) + 1e-8), mean, square), loss

    mesh = Mesh(devices, "batch")
    whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("batch"))
    share = jax.make_array_from_process_local_data
    saved = longboat.checkpoint.load()
    begin = [saved.arrays[name] for name in ("flat", "mean", "square")] if saved else [flat, 0 * flat, 0 * flat]
    state = tuple(share(whole, np.asarray(value)) for value in begin)

    for step in range(saved.step + 1 if saved else 1, args.steps + 1):
        draw = np.random.default_rng([args.seed, 3, step])  # of this step alone: a new life draws the same
        mine = draw.integers(args.points, size=args.batch).reshape(world, -1)[rank]
        state, loss = train_step(state, step, share(split, x[mine]), share(split, arm[mine]))
        if step % 50 == 0 or step == args.steps:
            network = unflatten(np.asarray(state[0]))
            guess = np.argmax(scores(network, held_out_x), axis=1)
            accuracy = float(np.mean(np.asarray(guess == held_out_arm)))
            longboat.report(step=step, total=args.steps, loss=float(loss), accuracy=accuracy)
        if rank == 0 and step % 100 == 0:
            arrays = dict(zip(("flat", "mean", "square"), map(np.asarray, state), strict=True))
            longboat.checkpoint.save(arrays, step=step)

    if rank == 0:
        network = unflatten(np.asarray(state[0]))
        path = os.path.join(os.environ.get("LONGBOAT_OUTPUT_DIR", "."), "weights.npz")
        np.savez(path, **network)
        print(f"weights in {path}", flush=True)


if __name__ == "__main__":
    main()
