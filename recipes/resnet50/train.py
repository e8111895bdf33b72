"""Trains ResNet50 v1.5 on TFRecord shards of JPEG images: in one process, by MPI, or by JAX's own collectives.

Every rank computes its share of each batch; gradients, statistics of the normalisations and losses are averaged over
all ranks in one message. Batches follow from the seed, so a new life of the gang goes on with the next image and the
same bits. Rank 0 alone writes. Also runs alone: `python train.py`.
"""

import argparse
import json
import os
import sys
import time
import traceback

import loader
import numpy as np
import small

import longboat

KEPT = ("weights", "statistics")
"""What of the state is the trained network."""
LEAST = {"epochs": 1, "schedule": 1, "evaluate_every": 1, "width": 1, "steps": 0, "checkpoint_every": 0, "workers": 0}


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=("single", "mpi", "allreduce"), default="single")
    parser.add_argument("--input", choices=("small", "imagenet", "synthetic"), default="small")
    parser.add_argument("--data", default=os.environ.get("DATASET_DIR", ""), help="directory of the shards")
    parser.add_argument("--small-set", choices=small.NAMES, default="mnist")
    parser.add_argument("--classes", type=int, default=0, help="0: 10 for a small set, else 1000")
    parser.add_argument("--image", type=int, default=64, help="height and width of an image")
    parser.add_argument("--width", type=int, default=64, help="channels of the first layer; 64 is ResNet50")
    parser.add_argument("--blocks", type=blocks_of, default="3-4-6-3", help="of the four stages; 3-4-6-3 is ResNet50")
    parser.add_argument("--batch", type=int, default=16, help="images in a batch, over all ranks")
    parser.add_argument("--group", type=int, default=0, help="images normalised together; 0: all of a device")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--steps", type=int, default=0, help="instead of epochs")
    parser.add_argument(
        "--schedule", type=int, default=90, help="epochs of the rate's schedule to squeeze into --steps"
    )
    parser.add_argument("--rate", type=float, default=0.128, help="learning rate for a batch of 256")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--operations", choices=("auto", "plain", "fast"), default="auto", help="auto: fast on a GPU")
    parser.add_argument("--smallest", type=float, default=0.08, help="least share of an image that a crop shows")
    parser.add_argument("--flips", choices=("yes", "no"), default="yes", help="mirror half of the images")
    parser.add_argument("--evaluate-every", type=int, default=1, help="epochs between two evaluations")
    parser.add_argument("--evaluate-images", type=int, default=0, help="so many of them; 0: all")
    parser.add_argument("--stop-at", type=float, default=0, help="stop when top-1 reaches this; 0: never")
    parser.add_argument("--checkpoint-every", type=int, default=0, help="steps between two checkpoints; 0: an epoch")
    parser.add_argument("--workers", type=int, default=0, help="decoding processes; 0: this rank's share of the cores")
    parser.add_argument("--bad-data", choices=("stop", "skip"), default="stop")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def blocks_of(text):
    blocks = [int(part) for part in text.split("-") if part.isdigit()]
    if len(blocks) != 4 or text.count("-") != 3 or min(blocks) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not four numbers such as 3-4-6-3")
    return blocks


class Ranks:
    """Who else trains, and how a batch gets onto this rank's devices."""

    def __init__(self, shape):
        import jax

        self.jax, self.comm = jax, None
        if shape == "mpi":
            from mpi4py import MPI

            self.comm, self.in_place = MPI.COMM_WORLD, MPI.IN_PLACE
            self.rank, self.count = self.comm.Get_rank(), self.comm.Get_size()
        else:
            if shape == "allreduce" and int(os.environ.get("NUM_PROCESSES", "1")) > 1:
                jax.distributed.initialize()
            self.rank, self.count = jax.process_index(), jax.process_count()
        devices = jax.local_devices() if self.comm else jax.devices()
        self.mesh = jax.sharding.Mesh(devices, "batch")
        self.local = jax.local_device_count()
        sharding = jax.sharding.NamedSharding
        self.whole = sharding(self.mesh, jax.sharding.PartitionSpec())
        self.split = sharding(self.mesh, jax.sharding.PartitionSpec("batch"))

    def divided(self, array):
        """This rank's share of a batch, divided among its devices."""
        return self.jax.make_array_from_process_local_data(self.split, array)

    def everywhere(self, tree):
        place = self.jax.make_array_from_process_local_data
        return self.jax.tree.map(lambda array: place(self.whole, np.asarray(array)), tree)

    def sum_row(self, row):
        """Through MPI, in one message."""
        self.comm.Allreduce(self.in_place, row)
        return row

    def total(self, numbers):
        """The sum of a few numbers over all ranks."""
        if self.comm:
            return self.sum_row(np.array(numbers, np.float64))
        if self.count == 1:
            return np.array(numbers, np.float64)
        from jax.experimental import multihost_utils

        return multihost_utils.process_allgather(np.array(numbers, np.float32)).sum(axis=0)


def check(args, ranks, devices):
    """Refuses what cannot be, with the arithmetic."""
    whole = ranks * devices
    if args.batch < 1 or args.batch % whole:
        sys.exit(f"--batch {args.batch} cannot be divided among {ranks} ranks with {devices} devices each")
    share = args.batch // whole
    if args.group < 0 or args.group and share % args.group:
        sys.exit(
            f"--group {args.group} does not divide the {share} images that a device has of a batch of {args.batch}"
        )
    if args.image < 32 or args.image % 32:
        sys.exit(f"--image {args.image}: the network halves an image five times; a multiple of 32 is wanted")
    for name, least in LEAST.items():
        if (value := getattr(args, name)) < least:
            sys.exit(f"--{name.replace('_', '-')} {value}: at least {least} is wanted")
    if args.input == "imagenet" and not args.data:
        sys.exit("--input imagenet: where are its shards? --set DATASET_DIR=DIR (by hand: --data DIR)")


class Synthetic:
    """One batch of random pixels on the devices, again and again: how fast the network alone is."""

    skipped = ()

    def __init__(self, ranks, images, size, classes, seed):
        draw = np.random.default_rng([seed, 5, ranks.rank])
        self.batch = (
            ranks.divided(draw.integers(0, 1 << 24, (images, size, size), dtype=np.uint32)),
            ranks.divided(draw.integers(0, classes, images, dtype=np.int32)),
        )

    def next(self):
        return self.batch


class Clock:
    """Images a second, without what is not training."""

    def __init__(self):
        self.images, self.since = 0, None

    def step(self, images):
        if self.since is None:
            self.since = time.monotonic()  # the first step compiles
        else:
            self.images += images

    def rate(self):
        rate = self.images / max(time.monotonic() - self.since, 1e-9)
        self.images, self.since = 0, time.monotonic()
        return rate


def flat(state):
    return {f"{kind}/{name}": np.asarray(value) for kind, values in state.items() for name, value in values.items()}


def nested(arrays):
    state = {}
    for key, value in arrays.items():
        kind, _, name = key.partition("/")
        state.setdefault(kind, {})[name] = value
    return state


def place_of(variable):
    """Where results go: below ROOT if mlops.env names one, in a directory of this run; else the run's own output."""
    if not os.environ.get("ROOT"):
        return os.environ.get("LONGBOAT_OUTPUT_DIR", ".")
    place = os.path.join(os.environ[variable], os.environ.get("LONGBOAT_RUN_ID", "alone"))
    os.makedirs(place, exist_ok=True)
    return place


def write(path, text_or_arrays):
    """A file, whole or not at all."""
    with open(path + ".new", "wb") as file:
        if isinstance(text_or_arrays, dict):
            np.savez(file, **text_or_arrays)
        else:
            file.write(text_or_arrays.encode())
    os.replace(path + ".new", path)
    return path


class Training:
    def __init__(self, args, ranks):
        import fast
        import operations
        import step

        self.args, self.ranks, self.rate_at = args, ranks, step.rate_at
        self.share, self.leader = args.batch // ranks.count, ranks.rank == 0
        groups = self.share // ranks.local // args.group if args.group else 1
        gpu = ranks.jax.default_backend() == "gpu"
        quick = args.operations == "fast" or args.operations == "auto" and gpu and groups == 1
        ops = fast.Fast(groups, interpret=not gpu) if quick else operations.Plain(groups)
        kind = step.KINDS[args.precision]
        self.step = step.new_step(ranks.mesh, ops, kind, ranks.sum_row if ranks.comm else None, ranks.count)
        self.evaluation = step.new_evaluation(kind)
        self.new_state = lambda: step.new_state(args.seed, args.width, args.classes, args.blocks)
        self.say(
            f"rank {ranks.rank} of {ranks.count}, {ranks.local} devices, {self.share} images a step", everyone=True
        )
        self.pool = None
        self.open()

    def say(self, text, everyone=False):
        if self.leader or everyone:
            print(text, flush=True)

    def open(self):
        """Finds the images, and how many steps there are."""
        args, self.per_epoch, self.shards = self.args, 1000, ()
        if args.input != "synthetic":
            data = args.data if args.input == "imagenet" else small.make(args.small_set)
            cores = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            self.pool = loader.Pool(args.workers or max(cores, 1), self.share, args.image)
            self.shards, self.held_out = (loader.find(self.pool, data, name, args.bad_data) for name in small.SETS)
            self.per_epoch = len(self.shards) // args.batch
            if not self.per_epoch:
                sys.exit(f"{data}: {len(self.shards)} images to train on do not fill one batch of {args.batch}")
            self.say(f"{len(self.shards)} images to train on, {len(self.held_out)} to evaluate with, in {data}")
        self.last = args.steps or args.epochs * self.per_epoch

    def feed(self, done):
        """The batches from the step after `done` on."""
        args, ranks = self.args, self.ranks
        if not self.pool:
            return Synthetic(ranks, self.share, args.image, args.classes, args.seed)
        how = loader.How(args.image, args.classes, args.bad_data, args.seed, args.smallest, args.flips == "yes", True)
        tasks = loader.training_tasks(done, len(self.shards), args.batch, ranks.rank, ranks.count, args.seed)
        return loader.Feed(self.pool, self.shards, tasks, how)

    def rate(self, number):
        """The learning rate of a step; where steps are given instead of epochs, the schedule is squeezed into them."""
        done = number - 1
        epoch = self.args.schedule * done / self.last if self.args.steps else done / self.per_epoch
        return np.float32(self.rate_at(epoch, self.args.batch, self.args.rate))

    def run(self):
        args, ranks, clock = self.args, self.ranks, Clock()
        saved = longboat.checkpoint.load()
        done = saved.step if saved else 0
        state = ranks.everywhere(nested(saved.arrays) if saved else self.new_state())
        feed, before, ended, found = self.feed(done), None, "", {}
        for number in range(done + 1, self.last + 1):
            batch = feed.next()
            if self.pool:
                batch = [ranks.divided(array) for array in batch]
            stop = ranks.divided(np.full(ranks.local, longboat.stopping(), np.float32))
            state, told = self.step(state, *batch, stop, self.rate(number))
            # One step at most is under way while the next batch is fetched: the batch of the one before may then go.
            stopped = before is not None and float(before["stop"]) > 0  # all ranks are told the same
            before = told
            clock.step(args.batch)
            look = self.pool and (number == self.last or number % (args.evaluate_every * self.per_epoch) == 0)
            if self.leader and (number % 10 == 0 or look or number == self.last):
                self.report(number, told, clock.rate())
            if look:
                found = self.evaluate(state, number)
                clock.rate()  # what evaluation took is not counted
                if args.stop_at and found["top1"] >= args.stop_at:
                    ended = f"top-1 {found['top1']:.2%} has reached {args.stop_at:.2%}"
            if self.leader and (stopped or ended or number % (args.checkpoint_every or self.per_epoch) == 0):
                longboat.checkpoint.save(flat(state), step=number, wait=stopped)
            if ended or stopped and number < self.last:
                break
        else:
            ended, number = "all steps are done", self.last
        self.close(feed)
        if not ended:
            self.say(f"asked to stop: stopped after step {number} of {self.last}", everyone=True)
        elif self.leader:
            self.write(state, {"steps": number, **found, "ended": ended})

    def report(self, number, told, speed):
        loss, top1, rate = float(told["loss"]), float(told["top1"]), float(self.rate(number))
        text = f"loss {loss:.4f}, top-1 of the batch {top1:.1%}, rate {rate:.4g}, {speed:.1f} images/s"
        self.say(f"step {number}/{self.last}: {text}")
        figures = {"loss": loss, "train_top1": top1, "rate": rate, "images_per_second": speed}
        longboat.report(step=number, total=self.last, **figures)

    def evaluate(self, state, number):
        """Top-1 and top-5 over images that are never trained on; each rank looks at its share."""
        args, ranks, share = self.args, self.ranks, self.share
        count = min(len(self.held_out), args.evaluate_images or len(self.held_out))
        tasks = list(loader.evaluation_tasks(count, share, ranks.rank, ranks.count))
        how = loader.How(args.image, args.classes, args.bad_data, args.seed)
        feed = loader.Feed(self.pool, self.held_out, tasks, how)
        own = {kind: {name: one.addressable_data(0) for name, one in state[kind].items()} for kind in KEPT}
        hits, seen = np.zeros(2), 0
        for _ in tasks:
            pixels, labels = feed.next()
            full = np.zeros((share, *pixels.shape[1:]), np.uint32)  # the last batch too, or it would compile again
            full[: len(pixels)] = pixels
            labels = np.pad(labels, (0, share - len(labels)), constant_values=-1)
            hits += np.asarray(self.evaluation(own, full, labels))
            seen += int(np.sum(labels >= 0))
        top1, top5, seen = ranks.total([*hits, seen])
        found = {"top1": float(top1 / max(seen, 1)), "top5": float(top5 / max(seen, 1))}
        text = f"top-1 {found['top1']:.2%}, top-5 {found['top5']:.2%} of {int(seen)} images"
        self.say(f"evaluation after step {number}: {text}")
        if self.leader:
            longboat.report(step=number, total=self.last, **found)
        return found

    def close(self, feed):
        if self.pool:
            self.pool.close()
        if feed.skipped:
            self.say(f"rank {self.ranks.rank} skipped {len(feed.skipped)} bad records", everyone=True)

    def write(self, state, result):
        arrays = {key: value for key, value in flat(state).items() if key.startswith(KEPT)}
        path = write(os.path.join(place_of("MODEL_DIR"), "weights.npz"), arrays)
        write(os.path.join(place_of("OUTPUT_DIR"), "result.json"), json.dumps(result) + "\n")
        self.say(f"{result['ended']}: weights in {path}")


def main():
    args = options()
    args.classes = args.classes or (10 if args.input == "small" else 1000)
    try:
        ranks = Ranks(args.shape)
    except ModuleNotFoundError as missing:
        mpi = " mpich mpi4py" if args.shape == "mpi" else ""
        sys.exit(f"this script needs {missing.name}: pip install jax simplejpeg google-crc32c{mpi}")
    try:
        check(args, ranks.count, ranks.local)
        ranks.total([0])  # meet now: later one may compile for longer than the other waits for a first message
        Training(args, ranks).run()
    except BaseException as error:
        if ranks.count == 1:
            raise
        # Not by way of the interpreter's end, where JAX and MPI would wait for peers that wait for this rank.
        text = str(error.code) if isinstance(error, SystemExit) else traceback.format_exc()
        print(text, file=sys.stderr, flush=True)
        os._exit(1)


if __name__ == "__main__":
    main()
