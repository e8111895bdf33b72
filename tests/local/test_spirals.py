"""The starter recipe's script, started by hand: it must not need Longboat to be right."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import longboat
from tests.ports import free_port

SCRIPT = Path(__file__).parents[2] / "recipes/spirals/train.py"
RANK_PATH = Path(longboat.__file__).parent / "runtime" / "rank_path"
FEW_STEPS = ("--steps", "20", "--points", "500", "--batch", "64")

if importlib.util.find_spec("jax") is None:  # asked, not imported: other tests fork, and JAX has threads
    pytest.skip("jax is not installed", allow_module_level=True)


def train(world: int, output: Path, *options: str) -> str:
    """Runs the script in `world` processes; what rank 0 printed."""
    output.mkdir()
    address = f"127.0.0.1:{free_port()}"
    common = {
        **os.environ,
        "NPROC": "1",
        "NUM_PROCESSES": str(world),
        "COORDINATOR_ADDRESS": address,
        "JAX_COORDINATOR_BIND_ADDRESS": address,
        "PYTHONPATH": str(RANK_PATH),
        "LONGBOAT_OUTPUT_DIR": str(output),
        "LONGBOAT_RUN_ID": "by-hand",
    }
    common.pop("LONGBOAT_REPORT_FILE", None)
    command = [sys.executable, str(SCRIPT), *options]
    ranks = [
        subprocess.Popen(command, env={**common, "PROCESS_ID": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    printed = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world
    return printed[0]


def test_two_ranks_give_the_same_bits_twice_and_those_of_one_rank_within_rounding(tmp_path: Path) -> None:
    for name, world in (("first", 2), ("second", 2), ("alone", 1)):
        train(world, tmp_path / name, *FEW_STEPS)
    first, second, alone = (np.load(tmp_path / name / "weights.npz") for name in ("first", "second", "alone"))
    assert sorted(first) == sorted(f"{part}{layer}" for part in ("weights", "biases") for layer in (1, 2, 3))
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
        np.testing.assert_allclose(first[name], alone[name], atol=2e-6, rtol=0)


def test_one_process_learns_points_that_it_never_saw_and_reports_every_50_steps(tmp_path: Path) -> None:
    printed = train(1, tmp_path / "output", "--steps", "600", "--seed", "3")
    steps = [int(step) for step in re.findall(r"^longboat: step=(\d+) total=600", printed, re.MULTILINE)]
    assert steps == list(range(50, 601, 50))
    found = re.findall(r"^longboat: step=600 .*accuracy=(\S+)", printed, re.MULTILINE)
    assert [float(accuracy) > 0.98 for accuracy in found] == [True]


def test_a_batch_that_the_ranks_cannot_share_is_refused_with_the_arithmetic(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--batch", "3"],
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "--batch 3 cannot be divided among 2 devices" in done.stderr
    assert list(tmp_path.iterdir()) == []
