"""Where the programs under test are, and the one way in which they are started."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from bench.harness import NotMeasured

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "bench/programs"
OWN = Path(sys.executable).parent
PYTHON = sys.executable
LONGBOAT = str(OWN / "longboat")


@cache
def environment_of(lock: str) -> Path:
    """The programs of an environment of its own below .bench, made from a lock when it is first asked for."""
    place = ROOT / ".bench" / ("venv" if lock == "bench" else lock)
    stamp = place / ".installed"
    if not stamp.exists():
        print(f"making {place} (frameworks are large: up to 6 GB)", file=sys.stderr)
        uv = [PYTHON, "-m", "uv"]
        packages = ["--require-hashes", "-r", str(ROOT / f"requirements/{lock}.txt")]
        install = ["pip", "install", "--quiet", "--python", str(place / "bin/python"), *packages]
        try:
            subprocess.run([*uv, "venv", "--quiet", "--clear", "--python", PYTHON, str(place)], check=True)
            subprocess.run([*uv, *install], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise NotMeasured(f"{lock} could not be installed: {error}") from error
        stamp.touch()
    return place / "bin"


def peer(name: str) -> str:
    """A program of the peers."""
    return str(environment_of("bench") / name)


def mpirun() -> str:
    program = OWN / "mpirun"
    if not program.exists():
        raise NotMeasured("there is no mpirun in this environment")
    return str(program)


@contextlib.contextmanager
def workshop() -> Iterator[Path]:
    """A directory for one measurement, removed after it."""
    directory = Path(tempfile.mkdtemp(prefix="longboat-bench-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def environment(home: Path) -> dict[str, str]:
    """The same for all contenders; the home marks the processes of one measurement."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LONGBOAT_", "PYTHON"))}
    return {**kept, "LONGBOAT_HOME": str(home), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}


def run(command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> str:
    """Runs a command to its end; what it wrote to both streams."""
    done = subprocess.run(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    said = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}:\n{said[-3000:]}")
    return said


def job(directory: Path, run_line: Sequence[str], ranks: int) -> str:
    """A job file with one all-reduce stage."""
    import json

    code = {"longboat": 1, "name": "bench", "stages": {"train": {"run": list(run_line), "ranks": ranks}}}
    stage = code["stages"]["train"]  # type: ignore[index]
    stage["shape"] = "allreduce"
    path = directory / "job.yaml"
    path.write_text(json.dumps(code))
    return str(path)


def run_directory(home: Path) -> Path:
    """The only run below a home."""
    journals = list(home.glob("**/events.jsonl"))
    if len(journals) != 1:
        raise SystemExit(f"{home} holds {len(journals)} runs, not one")
    return journals[0].parent
