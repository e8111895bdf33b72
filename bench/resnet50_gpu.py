"""ResNet50's full training step on one GPU, on synthetic images: images/s of each variant, and where the time goes.

    python3 bench/resnet50_gpu.py fast:1024 plain:256 ...

Each variant NAME:BATCH[:profile][:SETTING=NUMBER], a setting being one of fast.py's (TILE, WARPS, PROGRAMS), runs in a
process of its own with a time limit, so that one that fails takes no other along. Names: plain, as anybody would write
it; fast, what the recipe takes on a GPU; xla, the same without kernels of its own. Needs JAX with CUDA alone.
"""

from __future__ import annotations

import collections
import glob
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RECIPE = Path(__file__).resolve().parents[1] / "recipes/resnet50"
LIMIT = float(os.environ.get("LIMIT", "170"))
TURNS = 5


def measure(name: str, batch: int, options: list[str]) -> None:
    sys.path.insert(0, str(RECIPE))
    import fast
    import jax
    import jax.numpy as jnp
    import numpy as np
    import operations
    import step

    for option in options:
        setting, _, value = option.partition("=")
        if value:
            setattr(fast, setting, int(value))
    made: dict[str, Any] = {"plain": operations.Plain, "fast": fast.Fast}
    made["xla"] = lambda: fast.Fast(kernels=False)
    ops = made[name]()
    mesh = jax.sharding.Mesh(jax.devices()[:1], "batch")
    train = step.new_step(mesh, ops, jnp.bfloat16)
    state = jax.device_put(step.new_state(1, 64, 1000))
    draw = np.random.default_rng(1)
    pixels = jax.device_put(draw.integers(0, 1 << 32, (batch, 224, 224), dtype=np.uint32))
    labels = jax.device_put(draw.integers(0, 1000, batch, dtype=np.int32))
    stop, rate = jnp.zeros(1), np.float32(0.01)
    began = time.perf_counter()
    train = train.lower(state, pixels, labels, stop, rate).compile()
    compiled = time.perf_counter() - began
    state, told = train(state, pixels, labels, stop, rate)
    first = float(told["loss"])
    steps = max(12, 20 * 512 // batch)
    rates = []
    for _ in range(TURNS):
        began = time.perf_counter()
        for _ in range(steps):
            state, told = train(state, pixels, labels, stop, rate)
        last = float(told["loss"])
        rates.append(steps * batch / (time.perf_counter() - began))
    text = f"{' '.join([name, *options]):24} batch {batch:5}: {sorted(rates)[TURNS // 2]:8.0f} images/s (of {TURNS}: "
    text += f"{min(rates):.0f} to {max(rates):.0f}), compiling {compiled:.0f} s, loss {first:.3f} to {last:.3f}"
    print(text, flush=True)
    if "profile" in options:
        with gzip.open(os.path.join(os.environ.get("OUT", "."), f"{name}-{batch}.hlo.gz"), "wt") as file:
            file.write(train.as_text())
        with tempfile.TemporaryDirectory() as place:
            with jax.profiler.trace(place, create_perfetto_trace=True):
                for _ in range(3):
                    state, told = train(state, pixels, labels, stop, rate)
                told["loss"].block_until_ready()
            table(place, 3)


def table(place: str, steps: int) -> None:
    """Kernels by time, from the profiler's trace."""
    (path,) = glob.glob(f"{place}/**/perfetto_trace.json.gz", recursive=True)
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    threads = {
        (e["pid"], e.get("tid")): e["args"]["name"] for e in events if e.get("ph") == "M" and e["name"] == "thread_name"
    }
    times: dict[str, float] = collections.defaultdict(float)
    count: collections.Counter[str] = collections.Counter()
    for e in events:
        where = threads.get((e.get("pid"), e.get("tid")), "")
        if e.get("ph") == "X" and "Stream" in where:
            times[e["name"]] += e["dur"] / steps
            count[e["name"]] += 1
    kinds: dict[str, float] = collections.defaultdict(float)
    for kernel, spent in times.items():
        kind = "sums" if kernel.startswith("of_") else "fusions" if "fusion" in kernel else "convolutions and others"
        kinds[kind] += spent / 1e3
    print(f"  all kernels {sum(times.values()) / 1e3:.2f} ms a step: {dict(kinds)}", flush=True)
    for kernel, spent in sorted(times.items(), key=lambda one: -one[1])[: int(os.environ.get("TOP", "60"))]:
        print(f"  {spent:9.0f} us {count[kernel] // steps:4} x {kernel[:110]}", flush=True)


def main() -> None:
    if sys.argv[1] == "--one":
        name, batch, *rest = sys.argv[2].split(":")
        measure(name, int(batch), rest)
        return
    for variant in sys.argv[1:]:
        try:
            done = subprocess.run([sys.executable, __file__, "--one", variant], timeout=LIMIT, check=False)
            if done.returncode:
                print(f"{variant}: exit code {done.returncode}", flush=True)
        except subprocess.TimeoutExpired:
            print(f"{variant}: not done after {LIMIT:g} s", flush=True)


if __name__ == "__main__":
    main()
