"""How fast Criteo's CSV is read and Wide & Deep is trained on one core, beside other readers and beside the roof."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from bench.harness import Bench, Contender, NotMeasured, Target
from bench.places import PROGRAMS, PYTHON, ROOT, environment_of

ROWS = 300_000
READING, PANDAS = "recipes/wide_deep, categories hashed", "pandas"
TRAINING, ROOF = "recipes/wide_deep, fp32, the whole step", "its matrix products alone (XLA)"


@cache
def rows() -> str:
    """A directory with generated rows, for this run of the bench."""
    directory = tempfile.mkdtemp(prefix="longboat-bench-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    script = str(ROOT / "recipes/wide_deep/generate.py")
    subprocess.run(
        [PYTHON, script, "--rows", str(ROWS), "--eval-rows", "2000", "--out", directory],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return directory


def contender(title: str, name: str, python: Callable[[], str] = lambda: PYTHON) -> Contender:
    def once() -> float:
        command = [python(), str(PROGRAMS / "criteo_contender.py"), name, rows()]
        env = {key: value for key, value in os.environ.items() if not key.startswith(("LONGBOAT", "PYTHON"))}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotMeasured((done.stderr.strip().splitlines() or ["no word of why"])[-1])
        return float(done.stdout.split()[-1])

    return Contender(title, once)


def peers() -> str:
    return str(Path(environment_of("readers")) / "python")


def reading() -> Bench:
    return Bench(
        "criteo-reading",
        "Criteo's CSV from a file in the page cache, block by block, on one core: time for a row (1,000,000 / it is "
        "rows/s). The recipe's rows are ready to train on; the others have typed columns, of which one is hashed too.",
        "us",
        (
            contender(READING, "recipe"),
            contender(PANDAS, "pandas", peers),
            contender("pyarrow", "pyarrow", peers),
            contender("polars", "polars", peers),
            contender("polars, categories hashed", "polars-hashed", peers),
        ),
        (Target("at least twice as many rows/s as pandas", READING, lambda s: s[PANDAS].median / 2),),
    )


def training() -> Bench:
    return Bench(
        "wide-deep-training",
        "A step of Wide & Deep [1024, 512, 256] on batches of 1,024, rows read from the CSV, on one core: time for a "
        "row (1,000,000 / it is samples/s).",
        "us",
        (
            contender(TRAINING, "fp32"),
            contender("recipes/wide_deep, bf16, the whole step", "bf16"),
            contender(ROOF, "roof"),
        ),
        (
            Target("at least 4,000 samples/s a core in fp32", TRAINING, lambda _: 250.0),
            Target("aim: 80% of the roof", TRAINING, lambda s: s[ROOF].median / 0.8, aim=True),
        ),
    )
