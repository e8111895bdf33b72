"""What a failure costs: until the next generation runs, for a checkpoint, and of a training as a whole."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import Bench, Contender, NotMeasured, Target
from bench.places import LONGBOAT, PROGRAMS, PYTHON, ROOT, environment, peer, run, run_directory, workshop

STAMP = (PYTHON, "-S", str(PROGRAMS / "first_line_and_wait.py"))
SAVE = str(PROGRAMS / "save_state.py")
PATIENCE = 60.0


def recovery() -> Bench:
    """From the kill of one of two ranks until both run again."""

    def longboat() -> float:
        with workshop() as directory:
            home = directory / "home"

            def victim() -> int:
                """By the journal: what a rank takes for its own number holds inside its box alone."""
                return int(next(e["pid"] for e in _events(run_directory(home)) if e["ev"] == "rank.started"))

            def said() -> str:
                return "".join(log.read_text() for log in sorted(home.glob("runs/*/logs/**/*.log")))

            return _kill_one((LONGBOAT, "run", _job(directory, STAMP, 2)), directory, said, victim)

    def torchrun() -> float:
        program = peer("torchrun")
        with workshop() as directory:
            words = (program, "--nproc-per-node", "2", "--max-restarts", "100", "--no-python", *STAMP)

            def said() -> str:
                return (directory / "out").read_text()

            return _kill_one(words, directory, said, lambda: min(_stamps(said())))

    return Bench(
        "recovery",
        "Two ranks, one is killed with SIGKILL: from the kill until both processes of the next generation have printed "
        "their first line.",
        "s",
        (Contender("longboat run", longboat), Contender("torchrun --max-restarts 100", torchrun)),
        (Target("at most 0.3 s", "longboat run", lambda _: 0.3),),
    )


def _kill_one(command: Sequence[str], directory: Path, said: Callable[[], str], victim: Callable[[], int]) -> float:
    """Each process prints its number and its clock; one of the first two is killed."""
    with open(directory / "out", "wb") as out:
        launcher = subprocess.Popen(command, cwd=directory, env=environment(directory / "home"), stdout=out, stderr=out)
    try:
        first = _come_up(launcher, said, 2)
        time.sleep(0.5)  # an elastic agent is at rest
        pid = victim()
        killed = time.time_ns()
        _kill(pid, STAMP[-1])
        both = _come_up(launcher, said, 4)
        return (max(stamp for number, stamp in both.items() if number not in first) - killed) / 1e9
    finally:
        launcher.terminate()
        launcher.wait()


def _kill(pid: int, program: str) -> None:
    """Only what runs the program: numbers are used again."""
    if program not in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
        raise SystemExit(f"process {pid} does not run {program}")
    os.kill(pid, signal.SIGKILL)


def _come_up(launcher: subprocess.Popen[bytes], said: Callable[[], str], count: int) -> dict[int, int]:
    due = time.monotonic() + PATIENCE
    while len(found := _stamps(said())) < count:
        if launcher.poll() is not None or time.monotonic() > due:
            raise SystemExit(f"{len(found)} of {count} ranks came up:\n{said()[-2000:]}")
        time.sleep(0.002)
    return found


def _stamps(said: str) -> dict[int, int]:
    return {int(number): int(stamp) for number, stamp in re.findall(r"(?m)(\d+) (\d{19})$", said)}


def stall() -> Bench:
    """How long a training stands still while its state of 400 MB is kept."""

    def once(how: str, python: str = PYTHON) -> float:
        with workshop() as directory:
            place = directory / "state"
            place.mkdir()
            return float(
                run((python, SAVE, how, str(place)), directory, environment(directory / "home")).splitlines()[-1]
            )

    return Bench(
        "checkpoint stall",
        "A state of 400 MB (8 arrays): how long the call that keeps it holds the training up, median of 3 in a round. "
        "The two below also wait for the disk; longboat writes and flushes while training goes on.",
        "s",
        (
            Contender("a copy in memory (np.copyto)", lambda: once("copy")),
            Contender("longboat.checkpoint.save", lambda: once("longboat")),
            Contender("torch.save and fsync", lambda: once("torch", str(Path(peer("torchrun")).parent / "python"))),
            Contender("numpy.savez and fsync", lambda: once("savez")),
        ),
        (
            Target(
                "at most 1.3x a copy in memory",
                "longboat.checkpoint.save",
                lambda s: 1.3 * s["a copy in memory (np.copyto)"].median,
            ),
        ),
    )


# Goodput.

PARTS = ("steps that were computed again", "detection", "restart", "framework start", "checkpoints", "the rest")


@dataclass(frozen=True)
class Life:
    """One generation, as the journal tells it; times in seconds since the epoch."""

    started: float
    running: float
    """The last of its user processes ran."""
    ready: float
    """Its first rank could take the first step; 0 when it never came so far."""
    steps: Mapping[int, tuple[float, float]]
    """Step -> begin and end."""
    held_up: float
    ended: float


def goodput() -> Bench:
    """A JAX training on the CPU: a checkpoint every 5 s, a kill every minute."""
    minutes = float(os.environ.get("GOODPUT_MINUTES", "3"))
    shares: dict[str, float] = {}

    def all_lost() -> float:
        shares.update(_train(minutes))
        return 100 - shares["useful"]

    def part(name: str) -> Contender:
        return Contender(f"lost to: {name}", lambda: shares[name])

    return Bench(
        "goodput",
        f"Two ranks of JAX on the CPU for {minutes:g} minutes, a checkpoint every 5 s, a rank killed every minute; "
        "in percent of the time. What is not lost is goodput: the time of steps that are in the weights.",
        "%",
        (Contender("lost in all", all_lost), *(part(name) for name in PARTS)),
        (Target("goodput at least 90%: lost at most 10%", "lost in all", lambda _: 10.0),),
        rounds=1,
    )


def _train(minutes: float) -> dict[str, float]:
    try:
        run((PYTHON, "-c", "import jax"), ROOT, os.environ)
    except SystemExit:
        raise NotMeasured("jax is not installed") from None
    chance = random.Random(1)
    with workshop() as directory:
        home = directory / "home"
        env = {**environment(home), "JAX_PLATFORMS": "cpu"}
        program = str(ROOT / "tests/programs/jax_sgd.py")
        words = (LONGBOAT, "run", _job(directory, (PYTHON, program), 2))
        with open(directory / "out", "wb") as out:
            launcher = subprocess.Popen(words, cwd=directory, env=env, stdout=out, stderr=out)
        kills = []
        try:
            begun = time.time()
            for minute in range(max(1, int(minutes))):
                _sleep_until(begun + 60 * minute + chance.uniform(20, 55), launcher)
                events = _events(run_directory(home))
                ranks = [e for e in events if e["ev"] == "rank.started"][-2:]
                kills.append(time.time())
                _kill(chance.choice(ranks)["pid"], program)
            _sleep_until(begun + 60 * minutes, launcher)
            stopped = time.time()
        finally:
            launcher.send_signal(signal.SIGQUIT)
            launcher.wait()
        return _account(_events(run_directory(home)), kills, stopped)


def _sleep_until(due: float, launcher: subprocess.Popen[bytes]) -> None:
    while time.time() < due:
        if launcher.poll() is not None:
            raise SystemExit("the training ended by itself")
        time.sleep(0.2)


def _events(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]


def _account(events: Sequence[dict[str, Any]], kills: Sequence[float], stopped: float) -> dict[str, float]:
    """Every second of the run goes to one part; in percent."""
    lives = list(_lives(events, stopped))
    if len(lives) != len(kills) + 1 or not all(life.ready for life in lives):
        raise SystemExit(f"{len(kills)} kills, and {len(lives)} generations: {lives}")
    wall = stopped - next(e["t"] for e in events if e["ev"] == "run.started")
    last = {step: number for number, life in enumerate(lives) for step in life.steps}
    useful = again = 0.0
    for number, life in enumerate(lives):
        for step, (begin, end) in life.steps.items():
            if last[step] == number:
                useful += end - begin
            else:
                again += end - begin
    seconds = {
        "useful": useful - sum(life.held_up for life in lives),
        "steps that were computed again": again,
        "checkpoints": sum(life.held_up for life in lives),
        "framework start": sum(life.ready - life.running for life in lives),
        "restart": sum(life.running - life.started for life in lives),
        "detection": sum(life.started - kill for life, kill in zip(lives[1:], kills, strict=True)),
    }
    seconds["the rest"] = wall - sum(seconds.values())
    return {name: 100 * value / wall for name, value in seconds.items()}


def _lives(events: Sequence[dict[str, Any]], stopped: float) -> Iterator[Life]:
    """The generations; their steps by the reports of rank 0."""
    begins = [number for number, event in enumerate(events) if event["ev"] == "gen.started"]
    for begin, end in zip(begins, [*begins[1:], len(events)], strict=True):
        own = events[begin:end]
        started = own[0]["t"]
        ended = min([e["t"] for e in own if e["ev"] == "gen.ended"] + [stopped])
        points = [p for e in own if e["ev"] == "rank.report" and e["rank"] == 0 for p in e["points"]]
        ready = before = next((p["t"] for p in points if "ready" in p), 0.0)
        steps: dict[int, tuple[float, float]] = {}
        for point in points:
            if "loss" in point and point["t"] <= stopped:
                steps[point["step"]] = (before, point["t"])
                before = point["t"]
        held_up = sum(p["held_up"] for p in points if "held_up" in p)
        yield Life(started, max(e["t"] for e in own if e["ev"] == "rank.started"), ready, steps, held_up, ended)


def _job(directory: Path, command: Sequence[str], ranks: int) -> str:
    stage = {"run": list(command), "ranks": ranks, "shape": "allreduce", "restarts": 1000}
    path = directory / "job.yaml"
    path.write_text(json.dumps({"longboat": 1, "name": "bench", "code": ".", "stages": {"train": stage}}))
    return str(path)


def everything() -> dict[str, Callable[[], Sequence[Bench]]]:
    return {
        "recovery": lambda: [recovery()],
        "checkpoint-stall": lambda: [stall()],
        "goodput": lambda: [goodput()],
    }
