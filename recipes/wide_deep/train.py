"""Trains Wide & Deep on Criteo's CSV: `python train.py --data data`, where data holds train.csv and eval.csv.

Every process reads the same rows in the order of the file and computes its own part of each batch; gradients are
summed, and all change their copy of the model alike, so that any number of processes walks the path of one, but for
rounding. Checkpoints hold the model and the place of the next unread row. A try is --steps steps (0: a pass over all
rows); a further try, after a gate was missed, goes on behind the last row of the one before.
"""

import argparse
import gzip
import itertools
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, fields

try:
    import jax
    import numpy as np
except ModuleNotFoundError as missing:
    sys.exit(f"this script needs {missing.name}: pip install jax numpy")

import export
import model
import reader
import transform
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from metrics import scores

import longboat

OUTPUT = os.environ.get("LONGBOAT_OUTPUT_DIR", ".")
ATTEMPT = int(os.environ.get("LONGBOAT_ATTEMPT", "1"))


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="", help="directory with train.csv and eval.csv (what stage data left)")
    parser.add_argument("--train", default="train.csv", help="name there of the rows to train on; * for several files")
    parser.add_argument("--eval", default="eval.csv", help="name there of the rows to evaluate with")
    parser.add_argument("--steps", type=int, default=0, help="steps of a try; 0: --epochs passes over all rows")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1024, help="rows in a step, over all processes")
    parser.add_argument("--learning-rate", type=float, default=0.001, help="of Adam, for the net")
    parser.add_argument("--embedding-rate", type=float, default=0.1, help="of Adagrad, for the embeddings")
    parser.add_argument("--wide-rate", type=float, default=0.05, help="of Adagrad, for the wide weights")
    parser.add_argument("--hash-buckets", type=int, default=10000, help="buckets of each category")
    parser.add_argument("--statistics-rows", type=int, default=1_000_000, help="rows to scale the numbers by; 0: all")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="of the matrix products")
    parser.add_argument("--checkpoint-every", type=int, default=200, help="steps between two checkpoints")
    parser.add_argument("--eval-every", type=int, default=0, help="steps between two evaluations; 0: at the end alone")
    parser.add_argument("--saved-model", choices=("yes", "no"), default="yes", help="also for TensorFlow, if installed")
    parser.add_argument("--bad-rows", choices=("stop", "skip"), default="stop")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.data = args.data or os.environ.get("LONGBOAT_INPUT_DATA", "data")
    least = {"steps": 0, "epochs": 1, "batch": 1, "hash_buckets": 1, "statistics_rows": 0, "checkpoint_every": 1}
    for name, value in least.items():
        if vars(args)[name] < value:
            sys.exit(f"--{name.replace('_', '-')} {vars(args)[name]}: must be at least {value}")
    return args


def statistics(args, say):
    """Mean and deviation of the logarithms of the 13 numbers, over training rows alone."""
    count, total, squares, rows_seen = 0, 0.0, 0.0, 0
    for rows, _ in reader.batches(os.path.join(args.data, args.train), 1 << 14, 1, None, 1, args.bad_rows, say):
        found = transform.logarithms(rows.numbers).astype(np.float64)
        if args.statistics_rows:
            found = found[: args.statistics_rows - rows_seen]
        rows_seen += len(found)
        there = ~np.isnan(found)
        count, found = count + there.sum(axis=0), np.where(there, found, 0)
        total, squares = total + found.sum(axis=0), squares + (found**2).sum(axis=0)
        if rows_seen == args.statistics_rows:
            break
    count = np.maximum(count, 1)
    mean = total / count
    deviation = np.sqrt(np.maximum(squares / count - mean**2, 0))
    deviation[deviation < 1e-6] = 1  # a column with one value says nothing
    return {"mean": mean.astype(np.float32), "deviation": deviation.astype(np.float32)}


@dataclass(frozen=True)
class Until:
    """Where a try ends: behind a step, or behind a pass over the rows; 0 is never."""

    step: int
    turn: int

    def reached(self, step, place):
        return 0 < self.step <= step or 0 < self.turn < place.turn

    def further(self, args):
        """The end of one more try."""
        return Until(self.step + args.steps, 0) if args.steps else Until(0, self.turn + args.epochs)


class Trainer:
    """The model and how far it is; what it takes to go on from a checkpoint."""

    def __init__(self, args):
        self.args = args
        self.rank, self.world = jax.process_index(), jax.process_count()
        if args.batch % self.world:
            sys.exit(f"--batch {args.batch} cannot be divided among {self.world} processes")
        mesh = Mesh(jax.devices(), "batch")
        self._whole, self._divided = (NamedSharding(mesh, PartitionSpec(*axis)) for axis in ((), ("batch",)))
        self._step = model.new_step(mesh, args.precision, args.learning_rate)
        self._prediction = model.new_prediction(mesh, args.precision)
        self.attempt = ATTEMPT
        saved = longboat.checkpoint.load()
        if saved:
            self._load(saved)
        else:
            self.step, self.place, self.until = 0, reader.Place(), Until(0, 0).further(args)
            self.scale = statistics(args, self.say)
            self.tables = model.Tables.new(args.hash_buckets, args.seed)
            net = model.new_net(args.seed)
            nothing = {name: np.zeros_like(value) for name, value in net.items()}
            self.state = self._on_devices({"net": net, "mean": nothing, "square": nothing})

    def say(self, *words):
        if self.rank == 0:
            print(*words, flush=True)

    def _on_devices(self, state):
        return jax.tree.map(lambda value: jax.make_array_from_process_local_data(self._whole, value), state)

    def _load(self, saved):
        arrays, meta = saved.arrays, saved.meta
        self.step, self.place, self.until = saved.step, reader.Place(**meta["place"]), Until(**meta["until"])
        self.attempt = meta["attempt"]
        self.tables = model.Tables(**{field.name: arrays[f"tables.{field.name}"] for field in fields(model.Tables)})
        self.scale = {name: arrays[f"scale.{name}"] for name in ("mean", "deviation")}
        state = {part: {} for part in ("net", "mean", "square")}
        for name, value in arrays.items():
            part, _, rest = name.partition(".")
            if part in state:
                state[part][rest] = value
        self.state = self._on_devices(state)
        rows = len(transform.CATEGORIES) * self.args.hash_buckets
        if len(self.tables.wide) != rows:
            sys.exit(
                f"the checkpoint has {len(self.tables.wide)} buckets, --hash-buckets asks for {rows}: begin a new run"
            )

    def save(self, wait=False):
        if self.rank:
            return
        arrays = {f"tables.{name}": value for name, value in vars(self.tables).items()}
        arrays |= {f"scale.{name}": value for name, value in self.scale.items()}
        for part, values in self.state.items():
            arrays |= {f"{part}.{name}": np.asarray(value) for name, value in values.items()}
        meta = {"place": asdict(self.place), "until": asdict(self.until), "attempt": ATTEMPT}
        longboat.checkpoint.save(arrays, step=self.step, meta=meta, wait=wait)

    def _batch(self, rows):
        """This process's part of a batch, looked up and scaled, filled up to the size of a batch."""
        size = self.args.batch // self.world
        mine = rows.part(self.rank * size, (self.rank + 1) * size)
        looked_up, wide = self.tables.look_up(mine.buckets)
        found = {
            "labels": mine.labels,
            "numbers": transform.scaled(mine.numbers, **self.scale),
            "looked_up": looked_up,
            "wide": wide,
            "weight": np.ones(len(mine), np.float32),
        }
        missing = size - len(mine)
        if missing:
            found = {name: np.pad(v, [(0, missing)] + [(0, 0)] * (v.ndim - 1)) for name, v in found.items()}
        return found

    def _share(self, batch):
        return {name: jax.make_array_from_process_local_data(self._divided, value) for name, value in batch.items()}

    def learn(self, rows, place):
        """One step. Gives (loss, whether any process was asked to stop)."""
        batch = self._batch(rows)
        batch["stop"] = np.full(jax.local_device_count(), longboat.stopping(), np.float32)
        self.step, self.place = self.step + 1, place
        self.state, told = self._step(self.state, self.step, self._share(batch))
        of_rows = [np.asarray(gradient)[: len(rows)] for gradient in told["of_rows"]]
        self.tables.learn(rows.buckets, *of_rows, self.args.embedding_rate, self.args.wide_rate)
        return float(told["loss"]), bool(told["stop"])

    def evaluate(self):
        """Scores on the evaluation rows."""
        labels, likely = [], []
        pattern = os.path.join(self.args.data, self.args.eval)
        for rows, _ in reader.batches(
            pattern, self.args.batch, self.args.hash_buckets, None, 1, self.args.bad_rows, self.say
        ):
            batch = self._batch(rows)
            shared = self._share({name: batch[name] for name in ("numbers", "looked_up", "wide")})
            likely.append(np.asarray(self._prediction(self.state["net"], shared))[: len(rows)])
            labels.append(rows.labels)
        return scores(np.concatenate(labels), np.concatenate(likely))


def finished(step):
    """Whether the try that ended with this step was also evaluated and its model written; as rank 0 sees it."""
    try:
        with open(os.path.join(OUTPUT, "evaluation.json"), encoding="utf-8") as file:
            found = json.load(file)["step"] == step
    except (OSError, ValueError, KeyError):
        found = False
    return bool(multihost_utils.broadcast_one_to_all(np.array(found)))


def expected_steps(args, until, place):
    """Steps up to the end of this try; where that is the end of the rows, by the length of the first of them."""
    if until.step:
        return until.step
    files = reader.files_of(os.path.join(args.data, args.train))
    if any(path.endswith(".gz") for path in files) or not place.byte:
        return None
    length = place.byte / (place.row - 1)
    return -(-int(until.turn * sum(map(os.path.getsize, files)) / length) // args.batch)


def best_possible(directory):
    """What law.json says of rows that generate.py made; nothing of others."""
    try:
        with open(os.path.join(directory, "law.json"), encoding="utf-8") as file:
            return json.load(file)["best"]
    except (OSError, ValueError, KeyError):
        return None


def first_rows(path, count=2000):
    """Some good rows of a file as they stand there, for whoever tries the model."""
    found = []
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8", errors="replace") as file:
        for line in itertools.islice(file, 2 * count):
            texts = line.rstrip("\r\n").split("\t" if "\t" in line else ",")
            if len(texts) == len(reader.COLUMNS) and texts[0] in ("0", "1"):
                found.append(texts)
    return found[:count]


def examples(rows):
    """A row without a click and one with, by column; of those that have all numbers."""
    found = {}
    for label, *texts in rows:
        if all(texts[: len(transform.NUMBERS)]):
            columns = dict(zip(export.INPUTS, texts, strict=True))
            found.setdefault(int(label), columns | {name: float(columns[name]) for name in transform.NUMBERS})
    return [(found[label], label) for label in sorted(found)]


def tell(trainer, total, told):
    """Says and reports how good the model is."""
    trainer.say(f"step {trainer.step}: {told}")
    if trainer.rank == 0:
        figures = {name: value for name, value in told.as_dict().items() if name != "rows"}
        longboat.report(step=trainer.step, total=total, **figures)


def main():
    args = options()
    export.check()
    if int(os.environ.get("NUM_PROCESSES", "1")) > 1:
        jax.distributed.initialize()
    trainer = Trainer(args)
    say = trainer.say
    if trainer.until.reached(trainer.step, trainer.place) and trainer.attempt < ATTEMPT and finished(trainer.step):
        trainer.until = trainer.until.further(args)  # a further try, after one that was finished
    place = trainer.place
    say(f"{trainer.world} processes; pass {place.turn} over the rows, file {place.file + 1}, from row {place.row} on")

    pattern, total, since, rows_since = os.path.join(args.data, args.train), None, None, 0
    coming = reader.batches(pattern, args.batch, args.hash_buckets, trainer.place, sys.maxsize, args.bad_rows, say)
    while not trainer.until.reached(trainer.step, trainer.place):
        rows, place = next(coming)
        total = total or expected_steps(args, trainer.until, place)
        loss, stop = trainer.learn(rows, place)
        ended = trainer.until.reached(trainer.step, place)
        rows_since += len(rows)
        if since is None:  # the first step compiles
            since, rows_since = time.perf_counter(), 0
        elif trainer.rank == 0 and (trainer.step % 20 == 0 or ended):
            speed = rows_since / (time.perf_counter() - since)
            total = trainer.step if ended else total
            longboat.report(step=trainer.step, total=total, loss=loss, rows_per_s=speed)
            since, rows_since = time.perf_counter(), 0
        if ended or stop or trainer.step % args.checkpoint_every == 0:
            trainer.save(wait=ended or stop)
        if stop and not ended:
            say(f"asked to stop: stopped after step {trainer.step}; the next row is {place.row}")
            return
        if args.eval_every and trainer.step % args.eval_every == 0 and not ended:
            tell(trainer, total, trainer.evaluate())
            since, rows_since = time.perf_counter(), 0

    told = trainer.evaluate()
    tell(trainer, trainer.step, told)
    best = best_possible(args.data)
    if best:
        say(f"the law of these rows allows for AUC {best['auc']:.4f}, accuracy {best['accuracy']:.4f}")
    if trainer.place.skipped:
        say(f"{trainer.place.skipped} bad rows were skipped")
    if trainer.rank == 0:
        leave(trainer, told)


def leave(trainer, told):
    """The model of this try as a new version, and its figures."""
    args, figures = trainer.args, {name: value for name, value in told.as_dict().items() if np.isfinite(value)}
    net = {name: np.asarray(value) for name, value in trainer.state["net"].items()}
    rows = first_rows(reader.files_of(os.path.join(args.data, args.eval))[0])
    with open(os.path.join(OUTPUT, "sample.csv"), "w", encoding="utf-8") as file:
        file.writelines(",".join(texts) + "\n" for texts in rows)
    shown = examples(rows)
    place = os.path.join(OUTPUT, "wide_deep")
    tensorflow = args.saved_model == "yes"
    path = export.save(place, net, trainer.tables, trainer.scale, args.hash_buckets, figures, shown, tensorflow)
    with open(os.path.join(OUTPUT, "evaluation.json.new"), "w", encoding="utf-8") as file:
        json.dump({"step": trainer.step, "next_row": asdict(trainer.place), **figures}, file, indent=2)
    os.replace(os.path.join(OUTPUT, "evaluation.json.new"), os.path.join(OUTPUT, "evaluation.json"))
    trainer.say(f"model in {path}")


if __name__ == "__main__":
    main()
