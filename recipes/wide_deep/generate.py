"""Writes rows in the form of Criteo's, any number of them, from a law that is known.

    python generate.py --rows 1000000 --eval-rows 100000 --out data

leaves data/train.csv, data/eval.csv and data/law.json. How likely a click is depends on the categories, most of them
on their own, four in pairs, on the logarithms of the numbers, and in one case on both together. Since the law is known,
so is the best that any model can do on the evaluation rows: law.json says it.
"""

import argparse
import json
import os
import shutil

import numpy as np
import transform
from metrics import scores

CHUNK = 1 << 15
"""Rows that are made at once: each chunk has a seed of its own, so more rows begin with the same ones."""

VALUES = (1500, 550, 90000, 40000, 300, 20, 12000, 600, 3, 30000, 5000, 80000, 3000,
          26, 9000, 60000, 10, 4500, 2000, 4, 70000, 18, 15, 25000, 100, 20000)  # fmt: skip
"""Different values of each category."""
STRENGTH = (0.5, 0.4, 0.25, 0.25, 0.4, 0.5, 0.25, 0.3, 0.5, 0.2, 0.3, 0.2, 0.3,
            0.5, 0.3, 0.2, 0.5, 0.3, 0.3, 0.4, 0.2, 0.4, 0.4, 0.2, 0.4, 0.2)  # fmt: skip
EMPTY_CATEGORY = (
    0,
    0,
    0.03,
    0.03,
    0,
    0.1,
    0,
    0,
    0,
    0,
    0,
    0.03,
    0,
    0,
    0,
    0.03,
    0,
    0,
    0.4,
    0.4,
    0.03,
    0.7,
    0,
    0.03,
    0.4,
    0.4,
)
MEAN = (1.0, 3.0, 2.5, 1.8, 7.5, 3.5, 2.0, 2.3, 4.0, 0.5, 1.0, 0.5, 1.8)
SPREAD = (1.0, 1.8, 1.2, 1.0, 2.0, 1.8, 1.3, 1.0, 1.5, 0.6, 0.9, 0.8, 1.0)
EMPTY_NUMBER = (0.45, 0, 0.2, 0.2, 0.03, 0.2, 0.04, 0, 0.04, 0.45, 0.04, 0.75, 0.2)
SLOPE = (0.4, -0.3, 0.3, 0, -0.3, -0.2, 0.4, 0.2, 0, 0.3, 0.3, 0, -0.3)
LOWEST = -2
"""Of I2, which can be negative."""
PAIRS = ((8, 16), (19, 13))
"""Categories (from 0) that matter together, beyond what each does alone."""
TOGETHER = 0.6
CLICKS = 0.25
"""Share of the rows that are clicks."""


def scattered(*numbers):
    """A hash of whole numbers: 64 bits without order."""
    word = np.zeros(1, np.uint64)
    for part in numbers:
        word = transform.mixed((np.asarray(part).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)) ^ word)
    return word


def fixed(*numbers):
    """Between -1.7 and 1.7, with mean 0 and deviation 1, and always the same for the same numbers."""
    return ((scattered(*numbers) >> np.uint64(11)).astype(np.float64) / (1 << 53) - 0.5) * np.sqrt(12)


def draw(rng, rows, law):
    """(categories from 1 on, 0 for empty; numbers; which of those are empty; the logits of a click, unshifted)."""
    values = np.array(VALUES)
    spread = rng.random((rows, len(values))) * np.log(values + 1)
    categories = np.exp(spread).astype(np.int64)  # 1 often, 2 about half as often, 3 a third
    categories[rng.random(categories.shape) < np.array(EMPTY_CATEGORY)] = 0
    counts = np.exp(MEAN + SPREAD * rng.standard_normal((rows, len(MEAN)))).astype(np.int64)
    counts = np.minimum(counts, 9_999_999)
    counts[:, 1] += LOWEST
    empty = rng.random(counts.shape) < np.array(EMPTY_NUMBER)

    rare = 1 / (1 + categories / 40)  # what is rarely seen matters less
    logit = (fixed(law, np.arange(26), categories) * STRENGTH * rare * (categories > 0)).sum(axis=1)
    for one, other in PAIRS:
        logit += TOGETHER * fixed(law, 100 + one, categories[:, one], categories[:, other])
    scaled = (np.log1p(np.maximum(counts, 0)) - MEAN) / SPREAD
    scaled[empty] = 0
    logit += (scaled * SLOPE).sum(axis=1) + 0.35 * (scaled[:, 3] ** 2 - 1) + 0.5 * (scaled[:, 8] > 0.5)
    logit += 0.4 * scaled[:, 6] * fixed(law, 200, categories[:, 19])
    return categories, counts, empty, logit


def shift(law):
    """What is added to each logit, so that the share of clicks is CLICKS."""
    *_, logit = draw(np.random.default_rng([law, 2]), CHUNK, law)
    low, high = -20.0, 20.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if likely(logit + middle).mean() < CLICKS else (low, middle)
    return middle


def likely(logit):
    return 1 / (1 + np.exp(-logit))


def text_of(clicked, categories, counts, empty, law):
    """The rows as CSV: a field of eight bytes each, from which what is not used is taken out."""
    rows = len(clicked)
    room = np.zeros((rows, 40, 9), np.uint8)
    room[:, :, 8] = ord(",")
    room[:, -1, 8] = ord("\n")
    room[:, 0, 7] = ord("0") + clicked
    left = np.abs(counts)
    for place in range(7, 0, -1):
        shown = (left > 0) if place < 7 else True
        room[:, 1:14, place] = np.where(shown, ord("0") + left % 10, 0)
        left //= 10
    first = np.argmax(room[:, 1:14] > 0, axis=2) - 1
    row, column = np.nonzero(counts < 0)
    room[row, 1 + column, first[row, column]] = ord("-")
    room[:, 1:14, :8][empty] = 0
    names = (scattered(law, 300, np.arange(26), categories) >> np.uint64(32)).astype(np.uint32)
    digits = (names[..., None] >> np.arange(28, -1, -4, dtype=np.uint32)) & np.uint32(15)
    room[:, 14:, :8] = np.frombuffer(b"0123456789abcdef", np.uint8)[digits]
    room[:, 14:, :8][categories == 0] = 0
    return room[room > 0].tobytes()


def chunks(rows, seed, part):
    """(text, clicked, probability) for chunk after chunk; `part` 0 is to train on, 1 to evaluate with."""
    added = shift(seed)
    for number in range(-(-rows // CHUNK)):
        rng = np.random.default_rng([seed, part, number])
        categories, counts, empty, logit = draw(rng, CHUNK, seed)
        probability = likely(logit + added)
        clicked = rng.random(CHUNK) < probability
        end = min(CHUNK, rows - number * CHUNK)
        yield (
            text_of(clicked[:end], categories[:end], counts[:end], empty[:end], seed),
            clicked[:end],
            probability[:end],
        )


def write(path, rows, seed, part):
    """Writes rows to a file; labels and probabilities of those to evaluate with."""
    told = []
    with open(path, "wb") as file:
        for text, clicked, probability in chunks(rows, seed, part):
            file.write(text)
            if part == 1:
                told.append((clicked, probability))
    return [np.concatenate(column) for column in zip(*told, strict=True)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows to train on")
    parser.add_argument("--eval-rows", type=int, default=100_000, help="rows to evaluate with")
    parser.add_argument("--out", default="data", help="directory for the files")
    parser.add_argument("--seed", type=int, default=1, help="chooses the law and the rows")
    parser.add_argument(
        "--dataset", default="", help="a directory with train.csv and eval.csv of your own: nothing is made"
    )
    args = parser.parse_args()
    if args.dataset:
        print(f"nothing to generate: the rows are in {args.dataset}")
        return
    if min(args.rows, args.eval_rows) < 1:
        raise SystemExit(f"--rows {args.rows} --eval-rows {args.eval_rows}: both must be at least 1")
    unfinished = os.path.join(args.out, "unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    os.makedirs(unfinished)
    write(os.path.join(unfinished, "train.csv"), args.rows, args.seed, 0)
    best = scores(*write(os.path.join(unfinished, "eval.csv"), args.eval_rows, args.seed, 1))
    with open(os.path.join(unfinished, "law.json"), "w", encoding="utf-8") as file:
        json.dump({"rows": args.rows, "seed": args.seed, "best": best.as_dict()}, file, indent=2)
    for name in os.listdir(unfinished):
        os.replace(os.path.join(unfinished, name), os.path.join(args.out, name))
    os.rmdir(unfinished)
    print(f"{args.rows} rows to train on in {args.out}; the best that any model can do: {best}", flush=True)


if __name__ == "__main__":
    main()
