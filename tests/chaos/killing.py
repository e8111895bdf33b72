"""Kills real processes of real runs at random times, damages checkpoints, and sees whether training goes on.

A `Hunt` runs `tests/programs/numpy_sgd.py` through the command line and hits one victim after the
other. What it must find at the end of every run: the weights of the undisturbed run to the bit,
logs that hold exactly what the ranks' write(2) calls were given, no process and no scratch file.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import statistics
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from longboat.runtime import journal, run_layout
from longboat.runtime.agent import syscalls
from tests.local.place import MARK, Command, Place, until

PROGRAMS = Path(__file__).parents[1] / "programs"
PATIENCE = 60.0


@dataclass(frozen=True)
class Job:
    """How long and wide the training is; `tail` steps at the end are never disturbed."""

    ranks: int
    steps: int = 1500
    every: int = 10
    pause: float = 0.02
    tail: int = 40

    def text(self) -> str:
        return (
            f"name: chaos\ncode: {PROGRAMS}\nrun: [python, numpy_sgd.py]\nshape: allreduce\nranks: {self.ranks}\n"
            f'env: {{STEPS: "{self.steps}", EVERY: "{self.every}", PAUSE: "{self.pause}"}}\n'
            "restarts: 1000\nstall_after: 5\n"
        )


@dataclass(frozen=True)
class Kill:
    """What became of one blow."""

    victim: str
    resumed: bool
    to_generation: float = 0.0
    """Seconds until the next generation was recorded; 0 where none was needed."""
    to_rank: float = 0.0
    """Seconds until the first of its user processes ran."""
    healed: bool = False
    """Training went on in the same generation."""
    problem: str = ""


@dataclass
class Tally:
    """All blows of a hunt, and what was wrong."""

    kills: list[Kill] = field(default_factory=list)
    runs: int = 0
    lines: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.problems and all(kill.resumed for kill in self.kills)

    def table(self) -> str:
        """One row a kind of victim."""
        head = f"{'victim':<28} {'kills':>5} {'resumed':>7}   to gen.started, s     to rank.started, s"
        rows = [head]
        for victim in VICTIMS:
            hits = [kill for kill in self.kills if kill.victim == victim]
            if hits:
                good = sum(kill.resumed for kill in hits)
                first = _spread(kill.to_generation for kill in hits if kill.to_generation)
                second = _spread(kill.to_rank for kill in hits if kill.to_rank)
                healed = sum(kill.healed for kill in hits)
                told = f"   ({healed} went on without a new generation)" if healed else ""
                rows.append(f"{victim:<28} {len(hits):>5} {good:>7}   {first:<21} {second}{told}")
        return "\n".join(rows)


def _spread(values: Iterable[float]) -> str:
    found = list(values)
    return f"{statistics.median(found):.3f} (max {max(found):.3f})" if found else "-"


class Training:
    """One run under way, seen from outside."""

    def __init__(self, place: Place, job: Job) -> None:
        self.place, self.job = place, job
        self.path = place.file("job.yaml", job.text())
        before = set(place.runs)
        self.command: Command = place.begin("run", self.path)
        (self.directory,) = until(lambda: set(place.runs) - before, "the run")
        self._reader = journal.JournalReader(str(self.directory))
        self.events: list[journal.Event] = []

    @property
    def id(self) -> str:
        return self.directory.name

    def look(self) -> list[journal.Event]:
        self.events += self._reader.poll()
        return self.events

    def last(self, name: str, **keys: Any) -> journal.Event | None:
        for event in reversed(self.events):
            if event["ev"] == name and all(event.get(key) == value for key, value in keys.items()):
                return event
        return None

    @property
    def generation(self) -> int:
        found = self.last("gen.started")
        return int(found["gen"]) if found else 0

    def ranks(self) -> dict[int, int]:
        """Rank -> process, of the present generation."""
        now = self.generation
        return {e["rank"]: e["pid"] for e in self.events if e["ev"] == "rank.started" and e["gen"] == now}

    def step(self) -> int:
        """The furthest step that rank 0 has reported in this generation."""
        now, found = self.generation, -1
        for event in reversed(self.events):
            if event["ev"] == "gen.started":
                break
            if event["ev"] == "rank.report" and event["gen"] == now and event["rank"] == 0:
                found = max(found, *(int(point.get("step", -1)) for point in event["points"]))
        return found

    def wait(self, found: Callable[[], bool], what: str, seconds: float = PATIENCE) -> bool:
        """Until it is so, or the run has ended; False when neither comes."""
        due = time.monotonic() + seconds
        while True:
            self.look()
            if found():
                return True
            if self.ended() or time.monotonic() > due:
                self.look()
                return found()
            time.sleep(0.005)

    def ended(self) -> bool:
        return self.command.process.poll() is not None

    def up(self) -> bool:
        """Every rank of the present generation runs."""
        return len(self.ranks()) == self.job.ranks

    def hurry(self) -> None:
        """No more pauses between steps."""
        (Path(run_layout.output(str(self.directory), "main")) / "hurry").touch()

    def nearly_done(self) -> bool:
        return self.step() > self.job.steps - self.job.tail


# Victims: each strikes and gives a function that tells whether the blow was survived.


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def _hit(training: Training, pid: int, signum: int) -> None:
    """Only what belongs to this hunt: numbers are used again, and others work on this machine."""
    mark = f"{MARK}={training.place.mark}".encode()
    try:
        if mark not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            raise ProcessLookupError(pid)
    except PermissionError:
        raise ProcessLookupError(pid) from None
    os.kill(pid, signum)


def _rank(training: Training, chance: random.Random, signum: int, agent: bool, rank: int | None = None) -> None:
    ranks = training.ranks()
    pid = ranks[chance.choice(sorted(ranks)) if rank is None else rank]
    _hit(training, parent_of(pid) if agent else pid, signum)


def _both(training: Training, chance: random.Random, pause: float = 0.0) -> None:
    ranks = training.ranks()
    first, second = chance.sample(sorted(ranks), 2)
    agent = parent_of(ranks[second])
    _hit(training, ranks[first], signal.SIGKILL)
    time.sleep(pause)
    _hit(training, agent, signal.SIGKILL)


def _twice(training: Training, chance: random.Random) -> None:
    """A second blow while the gang comes together again after the first."""
    _both(training, chance, chance.uniform(0, 0.04))


def _all(training: Training, chance: random.Random) -> None:
    for agent in [parent_of(pid) for pid in training.ranks().values()]:
        _hit(training, agent, signal.SIGKILL)


def _pause(training: Training, _: random.Random) -> None:
    """As `docker pause`: driver, agents and ranks stand still for longer than the lease of an agent."""
    pids = [training.command.pid, *syscalls.descendants(training.command.pid)]
    syscalls.signal_all(pids, signal.SIGSTOP)
    time.sleep(20.0)
    syscalls.signal_all(pids, signal.SIGCONT)


def _flip_bit(training: Training, chance: random.Random) -> None:
    """Flip a bit of the newest checkpoint, if it is still there."""
    newest = training.last("checkpoint")
    for path in (training.directory / newest["path"]).glob("part-*.safetensors") if newest else ():
        with path.open("r+b") as file:
            at = chance.randrange(path.stat().st_size)
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 1 << chance.randrange(8)]))


def _rank_and_bit(training: Training, chance: random.Random) -> None:
    _flip_bit(training, chance)
    _rank(training, chance, signal.SIGKILL, False)


def _damage(training: Training, chance: random.Random) -> None:
    """Damage the list of checkpoints, the newest one, or nothing, while no driver runs."""
    manifest = training.directory / run_layout.manifest("main")
    what = chance.choice(("manifest", "checkpoint", "nothing"))
    if what == "manifest" and manifest.exists():
        manifest.write_bytes(manifest.read_bytes()[: chance.randrange(100)])
    elif what == "checkpoint":
        _flip_bit(training, chance)


SUPERVISOR = "supervisor SIGKILL"
PAUSE = "the whole run paused"
SLOW = ("agent SIGSTOP", PAUSE)
"""Those that take longer than a lease."""

VICTIMS: dict[str, Callable[[Training, random.Random], None]] = {
    "rank SIGKILL": lambda t, c: _rank(t, c, signal.SIGKILL, False),
    "rank SIGSEGV": lambda t, c: _rank(t, c, signal.SIGSEGV, False),
    "rank SIGSTOP": lambda t, c: _rank(t, c, signal.SIGSTOP, False),
    "agent SIGKILL": lambda t, c: _rank(t, c, signal.SIGKILL, True),
    "rank 0's agent SIGKILL": lambda t, c: _rank(t, c, signal.SIGKILL, True, 0),
    "a rank and an agent at once": _both,
    "all agents at once": _all,
    "an agent during recovery": _twice,
    "a rank and a bit at once": _rank_and_bit,
    "agent SIGSTOP": lambda t, c: _rank(t, c, signal.SIGSTOP, True),
    PAUSE: _pause,
    SUPERVISOR: lambda t, _: _hit(t, t.command.pid, signal.SIGKILL),
}

OFTEN = {"rank SIGKILL": 8, "agent SIGKILL": 5, "rank 0's agent SIGKILL": 4, "a rank and an agent at once": 3}
"""Weights in the draw; those not named here have 2."""


def draw(kills: int, chance: random.Random) -> list[str]:
    """A shuffled list of victims: every kind, those that take long to be noticed only a few times."""
    slow = list(SLOW) * max(1, kills // 60)
    kinds = [name for name in VICTIMS if name not in SLOW]
    weights = [OFTEN.get(name, 2) for name in kinds]
    found = slow + kinds[: max(0, kills - len(slow))]
    found += chance.choices(kinds, weights, k=kills - len(found))
    chance.shuffle(found)
    return found


class Hunt:
    def __init__(self, place: Place, seed: int, say: Callable[[str], None] = lambda _: None) -> None:
        self.place = place
        self.tally = Tally()
        self._chance = random.Random(seed)
        self._say = say
        self._undisturbed: dict[Job, str] = {}

    def undisturbed(self, job: Job) -> str:
        """The weights' hash of a run that nobody hits."""
        if job not in self._undisturbed:
            training = Training(self.place, replace(job, pause=0.0))
            said = training.command.said()
            assert said.code == 0, said.err
            self._undisturbed[job] = weights(training.directory)
            self._inspect(training, job)
        return self._undisturbed[job]

    def run(self, job: Job, victims: list[str]) -> int:
        """One run, hit by the victims in turn until it is nearly done; how many blows it took."""
        wanted = self.undisturbed(job)
        training, struck = Training(self.place, job), 0
        for victim in victims:
            if not self._moment(training):
                break
            kill = self._strike(training, victim)
            if kill is None:
                break
            struck += 1
            self.tally.kills.append(kill)
            self._say(
                f"{len(self.tally.kills):4d} {victim:<28} {'ok' if kill.resumed else 'MISSED'} "
                f"gen {training.generation} {kill.to_generation:.3f} {kill.to_rank:.3f} {kill.problem}"
            )
            if not kill.resumed:
                self._wrong(training, f"{victim}: {kill.problem}")
                break
        training.hurry()
        said = training.command.said()
        training.look()
        if said.code != 0:
            self._wrong(training, f"ended with code {said.code}: {said.err[-2000:]}")
        elif weights(training.directory) != wanted:
            self._wrong(training, "the weights are not those of the undisturbed run")
        self._inspect(training, job)
        self.tally.runs += 1
        return struck

    def _moment(self, training: Training) -> bool:
        """A random one: soon after the ranks came up, or once a checkpoint is there. False near the end."""
        if not training.wait(training.up, "all ranks"):
            return False
        if self._chance.random() < 0.6:
            now = training.generation
            training.wait(lambda: training.last("checkpoint", gen=now) is not None or training.generation != now, "", 5)
        time.sleep(self._chance.uniform(0, 0.5))
        training.look()
        return training.wait(training.up, "all ranks") and not training.nearly_done() and not training.ended()

    def _strike(self, training: Training, victim: str) -> Kill | None:
        """None when the victim had gone by itself."""
        generation, began = training.generation, len(training.events)
        at, clock = time.time(), time.monotonic()
        try:
            VICTIMS[victim](training, self._chance)
        except (ProcessLookupError, FileNotFoundError):
            return None
        if victim == SUPERVISOR:
            problem = self._resume(training)
            if problem:
                return Kill(victim, False, problem=problem)

        def next_life() -> bool:
            return training.generation > generation and bool(training.ranks())

        def healed() -> bool:
            if victim == PAUSE:
                return any(e["ev"] == "rank.report" and e["t"] > at + 20.0 for e in training.events[began:])
            if victim != "rank SIGSTOP" or not any(e["ev"] == "rank.stacks" for e in training.events[began:]):
                return False
            t = max(e["t"] for e in training.events[began:] if e["ev"] == "rank.stacks")
            return any(e["ev"] == "rank.report" and e["t"] > t + 0.5 for e in training.events[began:])

        if not training.wait(lambda: next_life() or healed(), "the next generation"):
            return Kill(victim, False, problem=f"no new generation within {time.monotonic() - clock:.0f} s")
        if training.generation == generation:
            return Kill(victim, True, healed=True)
        if victim == PAUSE:
            return Kill(victim, False, problem="the pause ended the generation")
        started = next(e for e in training.events if e["ev"] == "gen.started" and e["gen"] > generation)
        first = next(e for e in training.events if e["ev"] == "rank.started" and e["gen"] == started["gen"])
        return Kill(victim, True, started["t"] - at, first["t"] - at)

    def _resume(self, training: Training) -> str:
        """After a killed supervisor: all is gone, the run is lost, and it can go on. What is wrong, if anything."""
        training.command.process.wait()
        try:
            self.place.nothing_is_left()
        except AssertionError:
            return f"left behind: {self.place.processes()} {self.place.scratch()}"
        status = json.loads(self.place("status", "--json", training.id).out)
        if status["state"] != "lost" or (status.get("cause") or {}).get("kind") != "driver_lost":
            return f"the run is {status['state']}, cause {status.get('cause')}"
        _damage(training, self._chance)
        training.command = self.place.begin("run", "--resume", training.id)
        return ""

    def _inspect(self, training: Training, job: Job) -> None:
        for rank in range(job.ranks):
            lines, problem = compare_log(training.directory, rank)
            self.tally.lines += lines
            if problem:
                self._wrong(training, problem)
        try:
            self.place.nothing_is_left()
        except AssertionError:
            self._wrong(training, f"left behind: {self.place.processes()} {self.place.scratch()}")

    def _wrong(self, training: Training, problem: str) -> None:
        self.tally.problems.append(f"{training.id}: {problem}")
        self._say(f"     {training.id}: {problem}")


def weights(run: Path) -> str:
    """The hash of all arrays that a training has left, the chain over its steps among them."""
    found = hashlib.sha256()
    with np.load(Path(run_layout.output(str(run), "main")) / "weights.npz") as arrays:
        for name in sorted(arrays):
            found.update(name.encode() + arrays[name].tobytes())
    return found.hexdigest()


_CRASH = b"Fatal Python error: Segmentation fault"
"""Begins what Python writes about itself at the end of a life that SIGSEGV ended; no `say` counts it."""
_LINE = re.compile(rb"(\d+)\.(\d+) (\d+) [^\n]*")


def compare_log(run: Path, rank: int) -> tuple[int, str]:
    """(lines, what is wrong): the log against what the rank's write(2) calls were given, life by life."""
    data = Path(run_layout.log(str(run), "main", "worker", rank)).read_bytes()
    if data and not data.endswith(b"\n"):
        return 0, f"worker-{rank}: the log ends in the middle of a line"
    found: dict[tuple[int, int], int] = {}
    order: list[tuple[int, int]] = []
    crashed = False
    for line in data.splitlines():
        match = _LINE.fullmatch(line)
        crashed = match is None and (crashed or line == _CRASH)
        if crashed:
            continue
        if match is None:
            return 0, f"worker-{rank}: a line that no rank wrote: {line[:200]!r}"
        incarnation, number = (int(match[1]), int(match[2])), int(match[3])
        if incarnation not in found:
            order.append(incarnation)
        if number != found.get(incarnation, 0) or incarnation != order[-1]:
            missing = found.get(incarnation, 0)
            return (
                0,
                f"worker-{rank}, incarnation {incarnation}: line {missing} is missing or doubled, {number} is there",
            )
        found[incarnation] = number + 1
    if order != sorted(order):
        return 0, f"worker-{rank}: lives out of order: {order}"
    for path in sorted((Path(run_layout.output(str(run), "main")) / "witness").glob(f"{rank}-*")):
        _, generation, restart = path.name.split("-")
        incarnation = int(generation), int(restart)
        counts = path.read_bytes()
        begun, accepted = struct.unpack("<QQ", counts) if len(counts) == 16 else (0, 0)
        kept = found.pop(incarnation, 0)
        if not accepted <= kept <= begun:
            return (
                0,
                f"worker-{rank}, life {incarnation}: write(2) accepted {accepted} of {begun} lines, the log has {kept}",
            )
    if found:
        return 0, f"worker-{rank}: lines of lives that no witness saw: {sorted(found)}"
    return data.count(b"\n"), ""
