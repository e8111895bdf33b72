"""How long a training is held up by keeping its state of 400 MB: `python save_state.py HOW DIRECTORY`.

Prints the median of three times in seconds, after one to warm up. Between two of them the disk gets
time to finish, for a training does not save without pause.
"""

import os
import statistics
import sys
import time

HOW, DIRECTORY = sys.argv[1:]
if HOW == "torch":
    import torch

    STATE = {f"layer{number}": torch.full((12_500_000,), number, dtype=torch.float32) for number in range(8)}
else:
    import numpy as np

    STATE = {f"layer{number}": np.full(12_500_000, number, np.float32) for number in range(8)}
PATH = os.path.join(DIRECTORY, "state")


def flushed(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def copy() -> None:
    for name, value in STATE.items():
        np.copyto(COPY[name], value)


def longboat_save() -> None:
    longboat.checkpoint.save(STATE, step=next(STEPS))


def torch_save() -> None:
    torch.save(STATE, PATH)
    flushed(PATH)


def numpy_savez() -> None:
    np.savez(PATH, **STATE)
    flushed(PATH + ".npz")


def settle() -> None:
    if HOW == "longboat":
        longboat.checkpoint.wait()


if HOW == "copy":
    COPY = {name: np.ones_like(value) for name, value in STATE.items()}
elif HOW == "longboat":
    import itertools

    import longboat

    STEPS = itertools.count()
    os.environ["LONGBOAT_CHECKPOINT_DIR"] = DIRECTORY

save = {"copy": copy, "longboat": longboat_save, "torch": torch_save, "savez": numpy_savez}[HOW]
save()
settle()
times = []
for _ in range(3):
    begun = time.perf_counter()
    save()
    times.append(time.perf_counter() - begun)
    settle()
print(statistics.median(times))
