"""One way to deal with Criteo's CSV on one core: `python criteo_contender.py NAME DIRECTORY`.

Prints microseconds a row. DIRECTORY holds train.csv and eval.csv as recipes/wide_deep/generate.py writes them.
Reading: recipe (into batches, its categories hashed), pandas, pyarrow, polars (into typed columns, block by block),
polars-hashed (hashed too). Training: fp32 and bf16 (the recipe's whole step, reading included), roof (its matrix
products alone, in fp32).
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

ONE_CORE = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS")
RECIPE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../recipes/wide_deep")
NAMES = [str(number) for number in range(40)]
BATCH, STEPS = 1024, 30


def recipe(path: str) -> int:
    sys.path.insert(0, RECIPE)
    import reader

    return sum(len(rows) for rows, _ in reader.batches(path, BATCH, 10000))


def pandas(path: str) -> int:
    import pandas

    kinds = {0: "int8", **dict.fromkeys(range(1, 14), "float32"), **dict.fromkeys(range(14, 40), "string")}
    return sum(map(len, pandas.read_csv(path, header=None, chunksize=1 << 16, dtype=kinds)))


def pyarrow(path: str) -> int:
    import pyarrow
    from pyarrow import csv

    kinds = [pyarrow.int8(), *[pyarrow.float32()] * 13, *[pyarrow.string()] * 26]
    options = csv.ConvertOptions(column_types=dict(zip(NAMES, kinds, strict=True)))
    blocks = csv.open_csv(path, csv.ReadOptions(column_names=NAMES, use_threads=False), convert_options=options)
    return sum(block.num_rows for block in blocks)


def polars(path: str, hashed: bool = False) -> int:
    import polars

    kinds = [polars.Int8, *[polars.Float32] * 13, *[polars.String] * 26]
    rows = polars.scan_csv(path, has_header=False, schema=dict(zip(NAMES, kinds, strict=True)))
    if hashed:
        rows = rows.with_columns(polars.col(NAMES[14:]).hash() % 10000)
    return sum(map(len, rows.collect_batches(chunk_size=1 << 16)))


READERS: dict[str, Callable[[str], int]] = {
    "recipe": recipe,
    "pandas": pandas,
    "pyarrow": pyarrow,
    "polars": polars,
    "polars-hashed": lambda path: polars(path, hashed=True),
}


def trained(directory: str, precision: str) -> float:
    sys.path.insert(0, RECIPE)
    import reader
    import train

    sys.argv = ["train.py", "--data", directory, "--precision", precision, "--batch", str(BATCH)]
    args: argparse.Namespace = train.options()
    trainer = train.Trainer(args)
    taken, rows = [], reader.batches(os.path.join(directory, "train.csv"), BATCH, args.hash_buckets)
    begun = 0.0
    for _ in range(STEPS):
        begun = time.perf_counter()
        trainer.learn(*next(rows))
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken[3:]) / BATCH * 1e6


def roof() -> float:
    sys.path.insert(0, RECIPE)
    import jax
    import jax.numpy as jnp
    import model

    products: Any = jax.jit(lambda x, w, g: (x @ w, x.T @ g, g @ w.T))
    taken = 0.0
    for width, into in itertools.pairwise(model.LAYERS):
        given = [jnp.ones(shape) for shape in ((BATCH, width), (width, into), (BATCH, into))]
        once = []
        for _ in range(STEPS):
            begun = time.perf_counter()
            jax.block_until_ready(products(*given))
            once.append(time.perf_counter() - begun)
        taken += statistics.median(once[3:])
    return taken / BATCH * 1e6


def main() -> None:
    name, directory = sys.argv[1:3]
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ.update(dict.fromkeys(ONE_CORE, "1"))
    if name in READERS:
        path = os.path.join(directory, "train.csv")
        READERS[name](os.path.join(directory, "eval.csv"))  # what is imported is imported, and warm
        begun = time.perf_counter()
        rows = READERS[name](path)
        print((time.perf_counter() - begun) / rows * 1e6)
    else:
        print(roof() if name == "roof" else trained(directory, name))


if __name__ == "__main__":
    main()
