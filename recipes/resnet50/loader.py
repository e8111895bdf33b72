"""Batches of images from shards: which records, in which order, and the processes that decode them.

Order and crops follow from the seed, the epoch and the record alone. So a new life of the gang goes on with the next
image, any number of ranks sees the same batches, and so does any number of decoding processes.
"""

import glob
import multiprocessing
import os
import re
import signal
import threading
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import records

SLOTS = 6
"""Batches that are decoded, being decoded, or in use by the network."""
SKIP = "(--set BAD_DATA=skip leaves bad records out and counts them; by hand: --bad-data skip)"


@dataclass(frozen=True)
class Shards:
    """Every record of a set: the file it is in, its number there, and where it begins."""

    paths: list
    file: np.ndarray
    number: np.ndarray
    offset: np.ndarray

    def __len__(self):
        return len(self.file)

    def place(self, record):
        return self.paths[self.file[record]], int(self.number[record]), int(self.offset[record])


def shard_paths(directory, name):
    """NAME-00000-of-00008 and its sisters, all of them; ImageNet's are 1024 and 128."""
    found = sorted(glob.glob(os.path.join(glob.escape(directory), f"{name}-*-of-*")))
    if not found:
        raise SystemExit(f"{directory} has no {name}-00000-of-…: TFRecord shards are wanted, named as ImageNet's are")
    counts = {match[1] for path in found if (match := re.search(r"-of-(\d{5})$", path))}
    if len(counts) != 1:
        raise SystemExit(f"{directory}: {name} shards of more than one set, or names such as {found[0]}")
    (count,) = counts
    wanted = [os.path.join(directory, f"{name}-{number:05d}-of-{count}") for number in range(int(count))]
    missing = sorted(set(wanted) - set(found))
    if missing:
        raise SystemExit(f"{missing[0]} is missing: {len(missing)} of {len(wanted)} shards are not there")
    return wanted


def find(pool, directory, name, bad_data):
    """The records of a set. Files are looked through by all decoding processes at once; only lengths are read."""
    paths = shard_paths(directory, name)
    ends = list(pool.map(records.offsets, paths))
    wrong = [bad for _, bad in ends if bad]
    if wrong and bad_data == "stop":
        raise SystemExit(f"{wrong[0]} {SKIP}")
    for bad in wrong:
        print(f"skipped: {bad}, and all after it in that file", flush=True)
    lengths = [len(offsets) for offsets, _ in ends]
    if not sum(lengths):
        raise SystemExit(f"{directory}: the {name} shards hold no good record")
    return Shards(
        paths,
        np.repeat(np.arange(len(paths)), lengths),
        np.concatenate([np.arange(length) for length in lengths]),
        np.concatenate([offsets for offsets, _ in ends]),
    )


class Pool:
    """Decoding processes, and the memory they share with this one: SLOTS batches for training, two for evaluation."""

    def __init__(self, workers, images, size):
        spawn = multiprocessing.get_context("spawn")  # a fork would copy the locks of JAX's and MPI's threads
        shape = (SLOTS + 2, images, size, size)
        shared = spawn.RawArray("B", int(np.prod(shape)) * 4)
        self.pixels = np.frombuffer(shared, np.uint32).reshape(shape)
        self.chunk = max(1, min(32, images // (2 * workers)))
        self.processes = ProcessPoolExecutor(workers, spawn, initializer=_begin, initargs=(shared, shape))

    def map(self, function, things):
        return self.processes.map(function, things, chunksize=4)

    def submit(self, slot, tasks, how):
        chunks = [(at, tasks[at : at + self.chunk]) for at in range(0, len(tasks), self.chunk)]
        return [self.processes.submit(_decode, slot, at, chunk, how) for at, chunk in chunks]

    def close(self):
        self.processes.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class How:
    """How images are made of records."""

    size: int
    classes: int
    bad_data: str
    seed: int
    smallest: float = 1.0
    flips: bool = False
    train: bool = False


class Feed:
    """next() gives the pixels and labels of one batch after the other.

    The pixels are valid until the next-but-one call when training, in evaluation until the next.

    tasks: an iterator over lists of (epoch, record), one list for each batch. Labels of records that were skipped in
    evaluation are -1; in training the next good record takes the place.
    """

    def __init__(self, pool, shards, tasks, how):
        self.pool, self.shards, self.tasks, self.how = pool, shards, iter(tasks), how
        self.free = deque(range(SLOTS) if how.train else range(SLOTS, SLOTS + 2))
        self.under_way, self.used = deque(), deque()
        self.skipped = {}

    def next(self):
        if len(self.used) == (2 if self.how.train else 1):
            self.free.append(self.used.popleft())
        self._fill()
        slot, count, futures = self.under_way.popleft()
        labels = []
        try:
            for future in futures:
                found, skipped = future.result()
                labels.extend(found)
                self._tell(skipped)
        except BrokenProcessPool:
            raise SystemExit("a decoding process was ended from outside; was there too little memory?") from None
        except records.Bad as bad:
            raise SystemExit(f"{bad} {SKIP}") from None
        self.used.append(slot)
        return self.pool.pixels[slot, :count], np.array(labels, np.int32)

    def _fill(self):
        while self.free:
            batch = next(self.tasks, None)
            if batch is None:
                return
            tasks = [(epoch, record, *self._places(record)) for epoch, record in batch]
            slot = self.free.popleft()
            self.under_way.append((slot, len(tasks), self.pool.submit(slot, tasks, self.how)))

    def _places(self, record):
        """Where the record is; when training with skipping, also where those are that may have to take its place."""
        more = 8 if self.how.train and self.how.bad_data == "skip" else 1
        return [self.shards.place((record + ahead) % len(self.shards)) for ahead in range(more)]

    def _tell(self, skipped):
        for record, wrong in skipped.items():
            if record not in self.skipped:
                print(f"skipped: {wrong}", flush=True)
                self.skipped[record] = wrong


def training_tasks(first, count, batch, rank, world, seed):
    """(epoch, record) of this rank's share of each batch, from step `first` (counted from 0), without end.

    Each epoch has its own order. What does not fill a batch at its end is left out: other images in each epoch.
    """
    per_epoch, step, known = count // batch, first, -1
    while True:
        epoch, at = divmod(step, per_epoch)
        if epoch != known:
            order, known = np.random.default_rng([seed, 0, epoch]).permutation(count), epoch
        chosen = order[at * batch : (at + 1) * batch].reshape(world, -1)[rank]
        yield [(epoch, int(record)) for record in chosen]
        step += 1


def evaluation_tasks(count, batch, rank, world):
    """This rank's share of all records, each once; lists of `batch` but for the last."""
    mine = range(rank, count, world)
    for at in range(0, len(mine), batch):
        yield [(0, record) for record in mine[at : at + batch]]


_shared = None


def _begin(shared, shape):
    """In a decoding process, first. It ends with the process that started it, and only with that."""
    global _shared
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    _shared = np.frombuffer(shared, np.uint32).reshape(shape)
    parent = multiprocessing.parent_process()

    def follow():
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


@lru_cache(maxsize=256)
def _file(path):
    return os.open(path, os.O_RDONLY)


def _decode(slot, at, tasks, how):
    """Images of some records into their places of a slot; (their labels, {record: what is wrong with it})."""
    import images

    labels, skipped = [], {}
    for place, (epoch, record, *choices) in enumerate(tasks, start=at):
        label = -1
        for path, number, offset in choices:
            draw = np.random.default_rng([how.seed, 1, epoch, record]) if how.train else None
            try:
                pixels, label = images.load(
                    _file(path), path, number, offset, how.size, how.classes, draw, how.smallest, how.flips
                )
                _shared[slot, place] = pixels
                break
            except records.Bad as bad:
                if how.bad_data == "stop":
                    raise
                skipped[f"{path} {number}"] = str(bad)
        if label < 0 and how.train:
            raise records.Bad(*choices[0][:2], f"this and the {len(choices) - 1} records after it are bad: too many")
        labels.append(label)
    return labels, skipped
