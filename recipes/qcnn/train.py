"""Trains the quantum convolutional network of circuit.py to tell strongly excited cluster states from the others.

Every process draws the same examples from the seed and computes its own slice of each batch; one message a step sums
the gradients. Any number of processes walks the same path as one, but for rounding; training makes small differences
grow, so it computes in double precision, where they stay too small to be seen. Rank 0 alone writes: the test set at the
start, checkpoints, TensorBoard's files, and the weights at the end. Also runs alone: `python train.py`.
"""

import argparse
import os
import shutil
import sys

try:
    import jax
    import jax.numpy as jnp
    import numpy as np
except ModuleNotFoundError as missing:
    sys.exit(f"this script needs {missing.name}: pip install jax numpy")

import circuit
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import longboat
from longboat.runtime import tensorboard

OUTPUT = os.environ.get("LONGBOAT_OUTPUT_DIR", ".")
ASK_EVERY = 50
"""Steps between two times that the processes ask each other whether one of them is to stop."""


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=2000, help="70%% to train on, 30%% to test with")
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--batch", type=int, default=32, help="examples in a batch, over all processes")
    parser.add_argument("--learning-rate", type=float, default=0.02)
    parser.add_argument("--checkpoint-every", type=int, default=5, help="epochs between two checkpoints")
    parser.add_argument("--profile", default="", metavar="FIRST-LAST", help="steps to profile, such as 20-30")
    parser.add_argument("--precision", choices=("single", "double"), default="double")
    parser.add_argument("--seed", type=int, default=5)
    return parser.parse_args()


def check(args, devices):
    if args.batch < 1 or args.batch % devices:
        sys.exit(f"--batch {args.batch} cannot be divided among {devices} devices")
    if round(0.7 * args.examples) < args.batch:
        sys.exit(f"--examples {args.examples}: the 70% to train on do not fill one batch of {args.batch}")
    if min(args.epochs, args.checkpoint_every) < 1:
        sys.exit(f"--epochs {args.epochs} --checkpoint-every {args.checkpoint_every}: both must be at least 1")


def draw(count, seed):
    """The examples to train on and those to test with, the same in every process."""
    examples = circuit.excitations(count, np.random.default_rng([seed, 0]))
    mixed = np.random.default_rng([seed, 1]).permutation(count)
    split = round(0.7 * count)
    return [{name: values[part] for name, values in examples.items()} for part in (mixed[:split], mixed[split:])]


def new_step(mesh, learning_rate):
    """One step of Adam on a batch that is divided among the devices of the mesh."""

    def gradient(weights, batch):
        loss, gradient = jax.value_and_grad(lambda weights: jnp.sum(circuit.squared_errors(weights, **batch)))(weights)
        return jax.lax.psum(jnp.append(gradient, loss), "batch")  # one message

    divided = jax.shard_map(
        gradient,
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec("batch")),
        out_specs=PartitionSpec(),
        check_vma=False,  # or JAX would sum the gradient by itself, in a message of its own
    )

    @jax.jit
    def step(state, number, batch):
        found = divided(state["weights"], batch) / len(batch["label"])
        gradient, loss = found[:-1], found[-1]
        mean = 0.9 * state["mean"] + 0.1 * gradient
        square = 0.999 * state["square"] + 0.001 * gradient**2
        rate = learning_rate * jnp.sqrt(1 - 0.999**number) / (1 - 0.9**number)
        weights = state["weights"] - rate * mean / (jnp.sqrt(square) + 1e-7)
        return {"weights": weights, "mean": mean, "square": square, "loss": state["loss"] + loss}

    return step


def new_state(seed, kind):
    weights = np.random.default_rng([seed, 2]).uniform(0, 2, circuit.WEIGHTS).astype(kind)
    return {"weights": weights, "mean": 0 * weights, "square": 0 * weights, "loss": np.zeros((), kind)}


class Records:
    """What rank 0 leaves for people: reports, files for TensorBoard, a profile. Other ranks leave nothing."""

    def __init__(self, rank, profile, resume_step):
        self.place = os.path.join(OUTPUT, "tensorboard")
        self.board = tensorboard.Writer(self.place, resume_step) if rank == 0 else None
        first, _, last = profile.partition("-")
        if profile and not (first.isdigit() and (last or first).isdigit() and 0 < int(first) <= int(last or first)):
            sys.exit(f"--profile {profile}: not a range of steps such as 20-30")
        self.first, self.last = int(first or 0), int(last or first or 0)
        self.profiling = False

    def before(self, step):
        if self.board and step == self.first:
            print(f"profiler: started at step {step}", flush=True)
            jax.profiler.start_trace(self.place)
            self.profiling = True

    def after(self, step, state, last_step):
        if self.profiling and step in (self.last, last_step):
            jax.block_until_ready(state)
            jax.profiler.stop_trace()
            print(f"profiler: ended after step {step}, written below {self.place}", flush=True)
            self.profiling = False

    def epoch(self, step, total, loss, mse, accuracy, weights, predicted):
        if not self.board:
            return
        longboat.report(step=step, total=total, loss=loss, mse=mse, accuracy=accuracy)
        for tag, value in (("loss", loss), ("test/mse", mse), ("test/accuracy", accuracy)):
            self.board.scalar(tag, value, step)
        self.board.histogram("weights", weights, step)
        self.board.histogram("test/predictions", predicted, step)


def write(name, **arrays):
    """A file of the output directory, whole or not at all."""
    path = os.path.join(OUTPUT, name)
    with open(path + ".new", "wb") as file:
        np.savez(file, **arrays)
    os.replace(path + ".new", path)
    return path


def keep(*paths):
    """Copies files to where weights are kept, a directory for each run: nothing is written over."""
    place = os.environ.get("LONGBOAT_MOUNT_WEIGHTS")
    if place:
        kept = os.path.join(place, os.environ["LONGBOAT_RUN_ID"])
        os.makedirs(kept, exist_ok=True)
        for path in paths:
            shutil.copyfile(path, os.path.join(kept, os.path.basename(path)))
        print(f"kept as {kept}", flush=True)


def main():
    args = options()
    jax.config.update("jax_enable_x64", args.precision == "double")
    if int(os.environ.get("NUM_PROCESSES", "1")) > 1:
        jax.distributed.initialize()
    rank, world, devices = jax.process_index(), jax.process_count(), jax.devices()
    check(args, len(devices))
    train, test = draw(args.examples, args.seed)
    count = len(train["label"])
    per_epoch = count // args.batch  # what does not fill a batch is left out, other examples in each epoch
    steps = args.epochs * per_epoch
    print(f"process {rank} of {world}, {jax.local_device_count()} of {len(devices)} devices", flush=True)

    mesh = Mesh(devices, "batch")
    whole, divided = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("batch"))
    share = jax.make_array_from_process_local_data
    any_of = jax.jit(jnp.any, out_shardings=whole)
    step = new_step(mesh, args.learning_rate)
    saved = longboat.checkpoint.load()
    begin = saved.arrays if saved else new_state(args.seed, args.precision)
    state = {name: share(whole, np.asarray(value)) for name, value in begin.items()}
    done = saved.step if saved else 0
    records = Records(rank, args.profile, done if saved else None)
    if rank == 0:
        write("test.npz", **test)

    for number in range(done + 1, steps + 1):
        epoch, at = divmod(number - 1, per_epoch)
        if at == 0:
            state["loss"] = 0 * state["loss"]
        if at == 0 or number == done + 1:
            order = np.random.default_rng([args.seed, 3, epoch]).permutation(count)
        chosen = order[at * args.batch : (at + 1) * args.batch]
        records.before(number)
        state = step(state, number, {name: values[chosen] for name, values in train.items()})
        records.after(number, state, steps)

        stop, complete = False, at + 1 == per_epoch
        if complete or number % ASK_EVERY == 0:  # all stop after the same step, or the others would wait for ever
            stop = bool(any_of(share(divided, np.full(jax.local_device_count(), longboat.stopping()))))
        if complete:
            weights, loss = np.asarray(state["weights"]), float(state["loss"]) / per_epoch
            predicted = circuit.evaluate(weights, test)
            mse, accuracy = circuit.scores(predicted, test["label"])
            heading = f"epoch {epoch + 1}/{args.epochs}"
            print(f"{heading}: loss {loss:.4f}, test mse {mse:.4f}, signs right {accuracy:.1%}", flush=True)
            records.epoch(number, steps, loss, mse, accuracy, weights, predicted)
        if rank == 0 and (stop or complete and (epoch + 1) % args.checkpoint_every == 0):
            arrays = {name: np.asarray(value) for name, value in state.items()}
            longboat.checkpoint.save(arrays, step=number, wait=stop)
        if stop and number < steps:
            print(f"asked to stop: stopped after step {number} of {steps}", flush=True)
            return

    if rank == 0:
        path = write("weights.npz", weights=np.asarray(state["weights"]))
        print(f"weights in {path}", flush=True)
        keep(path, os.path.join(OUTPUT, "test.npz"))


if __name__ == "__main__":
    main()
