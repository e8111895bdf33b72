"""Trains a net of 784, 100 and 10 units on MNIST, its weights on parameter servers. Every role runs this script.

The chief hands out batches by number. A worker takes those numbers of the shuffled examples, reads the weights from the
parameter servers, and sends back what it found: by itself, as soon as it is ready (asynchronous), or to the chief,
which waits for all workers and takes the mean (--sync yes). Then each step is the same on every run.

The chief alone writes: checkpoints, figures, and the model at the end. Large weights are divided among all servers.
"""

import argparse
import json
import os
import socket
import sys
import time

try:
    import numpy as np
    import tensorflow as tf
except ModuleNotFoundError as missing:
    sys.exit(f"this script needs {missing.name}: pip install tensorflow-cpu")

import export
import idx

import longboat

WIDTHS = (idx.PIXELS, 100, idx.CLASSES)
SHARD = 64 << 10
"""Bytes: larger variables are divided among the parameter servers."""
CHUNK = 20
"""Batches for each worker between two looks at how far the training is."""


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=os.environ.get("LONGBOAT_INPUT_PREPARE", "data"), help="the four idx files")
    parser.add_argument("--batch", type=int, default=100, help="examples in a batch of one worker")
    parser.add_argument("--learning-rate", type=float, default=0.001, help="of Adam")
    parser.add_argument("--steps", type=int, default=5000, help="steps of all workers together; 0: until stopped")
    parser.add_argument("--sync", choices=("yes", "no"), default="no", help="wait for all workers in each step")
    parser.add_argument("--log-every", type=int, default=100, help="a worker tells every so many of its steps")
    parser.add_argument("--checkpoint-every", type=int, default=500, help="steps between two checkpoints")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    least = {"batch": 1, "steps": 0, "log_every": 1, "checkpoint_every": 1}
    for name, value in least.items():
        if vars(args)[name] < value:
            sys.exit(f"--{name.replace('_', '-')} {vars(args)[name]}: must be at least {value}")
    return args


def serve(resolver):
    """What workers and parameter servers do: compute and keep what the chief asks for, as long as there is a chief."""
    cluster = resolver.cluster_spec()
    threads = cluster.num_tasks("worker") + 1  # with fewer a request can wait for one that waits for it
    server = tf.distribute.Server(
        cluster,
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
        config=tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads, intra_op_parallelism_threads=1),
    )
    print(f"{resolver.task_type} {resolver.task_id} of {cluster.num_tasks(resolver.task_type)} is ready", flush=True)
    host, _, port = cluster.job_tasks("chief")[0].rpartition(":")
    while not (longboat.stopping() and gone(host, int(port))):  # asked to stop, the chief still wants its weights
        time.sleep(0.1)
    del server
    os._exit(0)  # a server has no other end


def gone(host, port):
    try:
        socket.create_connection((host.strip("[]"), port), timeout=1).close()
    except OSError:
        return True
    return False


class Net:
    """The weights on the parameter servers, beside each the running means that Adam keeps, and the global step."""

    def __init__(self, strategy, rate, seed, saved):
        first = saved.arrays if saved else new_weights(seed)
        self._rate = rate
        with strategy.scope():
            self.step = tf.Variable(saved.step if saved else 0, dtype=tf.int64, name="global_step")
            self.weights = {name: tf.Variable(first[name], name=name) for name in NAMES}
            self.parts = [(name, part) for name in NAMES for part in pieces(self.weights[name])]
            self._slots = {kind: self._beside(strategy, first, kind) for kind in ("mean", "square")}

    def _beside(self, strategy, first, kind):
        """A variable for each piece, on the server that keeps that piece."""
        found, at = [], dict.fromkeys(NAMES, 0)
        for name, part in self.parts:
            end = at[name] + part.shape[0]
            with strategy.extended.colocate_vars_with(part):
                found.append(tf.Variable(first[f"{kind}.{name}"][at[name] : end], name=f"{kind}.{name}"))
            at[name] = end
        return found

    def loss(self, images, labels):
        hidden = tf.nn.relu(images @ tf.convert_to_tensor(self.weights["hidden.weights"]) + self.weights["hidden.bias"])
        logits = hidden @ tf.convert_to_tensor(self.weights["output.weights"]) + self.weights["output.bias"]
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

    def apply(self, gradients):
        """One step of Adam, each piece on the server that keeps it. Gives the global step."""
        step = self.step.assign_add(1)
        passed = tf.cast(step, tf.float32)
        for (_, part), mean, square, gradient in zip(self.parts, *self._slots.values(), gradients, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=part.handle,
                m=mean.handle,
                v=square.handle,
                beta1_power=0.9**passed,
                beta2_power=0.999**passed,
                lr=self._rate,
                beta1=0.9,
                beta2=0.999,
                epsilon=1e-7,
                grad=gradient,
            )
        return step

    def arrays(self):
        """All of it, as numpy arrays by name."""
        kinds = {"": [part for _, part in self.parts], **{f"{kind}.": slots for kind, slots in self._slots.items()}}
        found = {}
        for kind, variables in kinds.items():
            for (name, _), variable in zip(self.parts, variables, strict=True):
                found.setdefault(kind + name, []).append(variable.numpy())
        return {name: np.concatenate(values) for name, values in found.items()}


NAMES = ("hidden.weights", "hidden.bias", "output.weights", "output.bias")


def pieces(variable):
    return getattr(variable, "variables", [variable])


def new_weights(seed):
    rng = np.random.default_rng(seed)
    arrays = {}
    for layer, width, into in (("hidden", *WIDTHS[:2]), ("output", *WIDTHS[1:])):
        arrays[f"{layer}.weights"] = (rng.standard_normal((width, into)) / np.sqrt(width)).astype(np.float32)
        arrays[f"{layer}.bias"] = np.zeros(into, np.float32)
    return arrays | {f"{kind}.{name}": np.zeros_like(a) for kind in ("mean", "square") for name, a in arrays.items()}


def examples_of(args):
    """A function that a worker runs: all examples, over and over, each time with the worker's own count."""
    images, labels = (os.path.join(args.data, name) for name in idx.FILES["train"])

    def dataset():
        pixels = tf.reshape(tf.io.decode_raw(tf.io.read_file(images), tf.uint8)[16:], (-1, idx.PIXELS))
        digits = tf.io.decode_raw(tf.io.read_file(labels), tf.uint8)[8:]
        return tf.data.Dataset.from_tensors((pixels, digits)).repeat().enumerate(start=1)

    return dataset


def batch_of(number, images, labels, args):
    """Batch `number` of the examples, which each pass over them shuffles anew."""
    count = tf.shape(images, out_type=tf.int64)[0]
    at = number * args.batch + tf.range(args.batch, dtype=tf.int64)
    seeds = tf.stack([tf.fill((args.batch,), tf.constant(args.seed, tf.int64)), at // count, 0 * at], axis=1)
    chosen = tf.raw_ops.RandomIndexShuffle(index=at % count, seed=seeds, max_index=count - 1, rounds=4)
    return tf.cast(tf.gather(images, chosen), tf.float32) / 255, tf.cast(tf.gather(labels, chosen), tf.int32)


class Work:
    """What workers are asked to do, and how the chief asks."""

    def __init__(self, net, coordinator, workers, args):
        self.net, self.workers, self._args, self._coordinator = net, workers, args, coordinator
        self._examples = iter(coordinator.create_per_worker_dataset(examples_of(args)))
        self._gradient, self._update = tf.function(self._gradient), tf.function(self._update)
        self._apply = tf.function(net.apply)

    def _found(self, examples, number):
        local, (images, labels) = next(examples)
        with tf.GradientTape() as tape:
            loss = self.net.loss(*batch_of(number, images, labels, self._args))
        return local, loss, tape.gradient(loss, [part for _, part in self.net.parts])

    def _say(self, local, step):
        if local % self._args.log_every == 0:  # in the worker's own log
            tf.print(tf.strings.format("training step {} done (global step: {})", (local, step)))

    def _update(self, examples, number):
        local, loss, gradients = self._found(examples, number)
        self._say(local, self.net.apply(gradients))
        return loss

    def _gradient(self, examples, number, step):
        local, loss, gradients = self._found(examples, number)
        self._say(local, step)
        return loss, gradients

    def asynchronous(self, first, count):
        """Hands out `count` batches; waits until all are done. Gives the loss of one of them."""
        asked = [
            self._coordinator.schedule(self._update, args=(self._examples, tf.constant(first + i, tf.int64)))
            for i in range(count)
        ]
        self._coordinator.join()
        for loss in reversed(asked):
            try:
                return float(loss.fetch())
            except tf.errors.OpError:  # it was on a worker that is gone by now
                continue
        return None

    def synchronous(self, step):
        """One step: each worker a batch, the mean of their gradients. Gives the mean loss."""
        results = {}
        while len(results) < self.workers:
            asked = {
                part: self._coordinator.schedule(
                    self._gradient,
                    args=(self._examples, tf.constant(step * self.workers + part, tf.int64), tf.constant(step + 1)),
                )
                for part in range(self.workers)
                if part not in results
            }
            self._coordinator.join()
            for part, result in asked.items():
                try:
                    results[part] = self._coordinator.fetch(result)
                except tf.errors.OpError:  # that worker is gone: ask another
                    continue
        ordered = [results[part] for part in range(self.workers)]
        self._apply([np.mean(found, axis=0) for found in zip(*(gradients for _, gradients in ordered), strict=True)])
        return float(np.mean([loss for loss, _ in ordered]))


def accuracy(arrays, images, labels):
    """Share of the images that these weights name rightly."""
    hidden = np.maximum(images.astype(np.float32) / 255 @ arrays["hidden.weights"] + arrays["hidden.bias"], 0)
    said = np.argmax(hidden @ arrays["output.weights"] + arrays["output.bias"], axis=1)
    return float((said == labels).mean())


def lead(resolver, args):
    """What the chief does."""
    cluster = resolver.cluster_spec()
    workers, servers = cluster.num_tasks("worker"), cluster.num_tasks("ps")
    divide = tf.distribute.experimental.partitioners.MinSizePartitioner(SHARD, servers)
    strategy = tf.distribute.ParameterServerStrategy(resolver, divide)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    saved = longboat.checkpoint.load()
    net = Net(strategy, args.learning_rate, args.seed, saved)
    for name, part in net.parts:
        where = tf.DeviceSpec.from_string(part.device)
        print(f"{name}: {' x '.join(map(str, part.shape))} on {where.job} {where.task}", flush=True)
    work = Work(net, coordinator, workers, args)
    begun, step, kept = time.monotonic(), saved.step if saved else 0, saved.step if saved else 0
    print(f"training begins at step {step}: {workers} workers, {servers} parameter servers", flush=True)

    while not longboat.stopping() and (args.steps == 0 or step < args.steps):
        if args.sync == "yes":
            loss, step = work.synchronous(step), step + 1
        else:
            count = CHUNK * workers
            loss = work.asynchronous(step, min(count, args.steps - step) if args.steps else count)
            step = int(net.step.numpy())
        if args.sync == "no" or step % CHUNK == 0 or step == args.steps:
            told = {} if loss is None else {"loss": loss}
            longboat.report(step=step, total=args.steps or None, **told)
        if step - kept >= args.checkpoint_every:
            longboat.checkpoint.save(net.arrays(), step=step)
            kept = step

    arrays = net.arrays()
    longboat.checkpoint.save(arrays, step=step, wait=True)
    print(f"training elapsed time: {time.monotonic() - begun:.2f} s", flush=True)
    if args.steps and step < args.steps:
        print(f"asked to stop: stopped after global step {step} of {args.steps}", flush=True)
        return
    images, labels = idx.examples(args.data, "test")
    found = accuracy(arrays, images, labels)
    print(f"global step {step}: test accuracy {found:.4f}", flush=True)
    longboat.report(step=step, total=args.steps or step, accuracy=found)
    print(f"model in {export.save(arrays, {'accuracy': found}, images[:3], labels[:3])}", flush=True)


def main():
    args = options()
    export.check()
    if "ps" not in json.loads(os.environ.get("TF_CONFIG", "{}")).get("cluster", {}):
        sys.exit("this script wants a chief, workers and parameter servers: longboat run job.yaml")
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type != "chief":
        serve(resolver)
    longboat.stopping()  # from now on SIGTERM is heard
    lead(resolver, args)


if __name__ == "__main__":
    main()
