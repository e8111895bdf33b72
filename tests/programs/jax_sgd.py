"""Data-parallel training in JAX that keeps its state every few seconds and goes on until it is stopped.

A perceptron learns a fixed random function. The batch is a function of the step. It says when it is
ready (everything imported, connected, loaded and compiled), so that a reader of the journal can tell
how long a framework takes to come up.
"""

from __future__ import annotations

import os
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import longboat

WIDTH, DEPTH, BATCH, RATE = 512, 4, 512, 0.01
EVERY = float(os.environ.get("EVERY", "5"))
STEPS = int(os.environ.get("STEPS", "1000000"))


def fresh() -> dict[str, Any]:
    draw = np.random.default_rng(1)
    return {f"w{n}": draw.normal(0, WIDTH**-0.5, (WIDTH, WIDTH)).astype(np.float32) for n in range(DEPTH)}


def loss_of(weights: dict[str, Any], x: Any, y: Any) -> Any:
    for n in range(DEPTH):
        x = jnp.tanh(x @ weights[f"w{n}"])
    return jnp.mean((x - y) ** 2)


def advanced(weights: dict[str, Any], x: Any, y: Any) -> tuple[dict[str, Any], Any]:
    loss, slope = jax.value_and_grad(loss_of)(weights, x, y)
    return {name: value - RATE * slope[name] for name, value in weights.items()}, loss


def main() -> None:
    jax.distributed.initialize()
    advance = jax.jit(advanced)
    rank, world = jax.process_index(), jax.process_count()
    mesh = Mesh(jax.devices(), "batch")
    whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("batch"))
    share = jax.make_array_from_process_local_data

    def batch(step: int) -> tuple[Any, Any]:
        x = np.random.default_rng([step, rank]).normal(0, 1, (BATCH // world, WIDTH)).astype(np.float32)
        return share(split, x), share(split, np.sin(3 * x))

    found = longboat.checkpoint.load()
    state, first = (found.arrays, found.step + 1) if found else (fresh(), 1)
    weights = {name: share(whole, value) for name, value in state.items()}
    jax.block_until_ready(advance(weights, *batch(first)))
    longboat.report(step=first - 1, ready=1)
    saved = time.monotonic()
    for step in range(first, STEPS + 1):
        weights, loss = advance(weights, *batch(step))
        longboat.report(step=step, loss=float(loss))
        if rank == 0 and time.monotonic() - saved >= EVERY:
            saved = time.monotonic()
            longboat.checkpoint.save({name: value.addressable_data(0) for name, value in weights.items()}, step=step)
            longboat.report(step=step, held_up=time.monotonic() - saved)


if __name__ == "__main__":
    main()
