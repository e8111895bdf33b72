"""What is measured: one function a bench. All go through command lines, as a user would."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

from bench import recovery, serving
from bench.harness import Bench, Contender, NotMeasured, Target
from bench.places import LONGBOAT, PROGRAMS, PYTHON, environment, job, mpirun, peer, run, run_directory, workshop
from bench.qcnn import qcnn
from bench.wide_deep import reading, training

FIRST_LINE = (PYTHON, "-S", str(PROGRAMS / "first_line.py"))
LINES = str(PROGRAMS / "lines.py")
MANY = 1_000_000
FEW = 10_000


def launch() -> Bench:
    """Two ranks to their first line."""

    def printed(command: Callable[[Path], Sequence[str]]) -> float:
        with workshop() as directory:
            words = command(directory)
            begun = time.time_ns()
            said = run(words, directory, environment(directory / "home"))
            said += "".join(log.read_text() for log in (directory / "home").glob("**/logs/**/*.log"))
            stamps = {int(number) for number in re.findall(r"\d{19}", said)}
            if len(stamps) != 2:
                raise SystemExit(f"{' '.join(words)}\nprinted {len(stamps)} lines, not two:\n{said}")
            return (max(stamps) - begun) / 1e9

    def bare() -> float:
        begun = time.time_ns()
        ranks = [subprocess.Popen(FIRST_LINE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        return (max(int(rank.communicate()[0]) for rank in ranks) - begun) / 1e9

    def torchrun(_: Path) -> Sequence[str]:
        return (peer("torchrun"), "--nproc-per-node", "2", "--no-python", *FIRST_LINE)

    return Bench(
        "launch",
        "Two ranks, from the start of the launcher until both ranks have printed their first line.",
        "s",
        (
            Contender("subprocess.Popen x 2 (the floor)", bare),
            Contender("longboat run", lambda: printed(lambda d: (LONGBOAT, "run", job(d, FIRST_LINE, 2)))),
            Contender("mpirun -n 2", lambda: printed(lambda _: (mpirun(), "-n", "2", *FIRST_LINE))),
            Contender("torchrun --nproc-per-node 2", lambda: printed(torchrun)),
        ),
        (
            Target(
                "at most 0.2x torchrun",
                "longboat run",
                lambda s: 0.2 * s["torchrun --nproc-per-node 2"].median,
            ),
            Target(
                "at most 0.25 s over the floor (aim 0.15)",
                "longboat run",
                lambda s: 0.25 + s["subprocess.Popen x 2 (the floor)"].median,
            ),
        ),
    )


def start_up() -> Bench:
    """What a command costs before it does anything."""

    def once(*command: str) -> float:
        with workshop() as directory:
            job(directory, ("true",), 2)
            env = environment(directory / "home")
            begun = time.perf_counter()
            run(command, directory, env)
            return time.perf_counter() - begun

    return Bench(
        "start-up",
        "A whole command that only prints.",
        "s",
        (
            Contender("python -c pass (the floor)", lambda: once(PYTHON, "-c", "pass")),
            Contender("longboat --help", lambda: once(LONGBOAT, "--help")),
            Contender("longboat plan job.yaml", lambda: once(LONGBOAT, "plan", "job.yaml")),
            Contender("torchx --help", lambda: once(peer("torchx"), "--help")),
        ),
        tuple(
            Target(f"{name}: {says}", name, bound, says.startswith("aim"))
            for name in ("longboat --help", "longboat plan job.yaml")
            for says, bound in (
                ("no slower than torchx --help", lambda s: s["torchx --help"].median),
                ("aim 0.1 s", lambda _: 0.1),
            )
        ),
    )


def many_ranks() -> Bench:
    """A hundred ranks that do nothing."""

    def longboat() -> float:
        with workshop() as directory:
            file, home = job(directory, ("true",), 100), directory / "home"
            begun = time.perf_counter()
            run((LONGBOAT, "run", file), directory, environment(home))
            took = time.perf_counter() - begun
            events = [json.loads(line) for line in (run_directory(home) / "events.jsonl").read_text().splitlines()]
            ended = [e for e in events if e["ev"] == "rank.ended" and e["state"] == "succeeded"]
            if len(ended) != 100 or events[-1]["ev"] != "run.ended":
                raise SystemExit(f"the journal tells of {len(ended)} ranks, not 100, and ends with {events[-1]}")
            return took

    def bare() -> float:
        begun = time.perf_counter()
        for rank in [subprocess.Popen(("true",)) for _ in range(100)]:
            rank.wait()
        return time.perf_counter() - begun

    def mpi() -> float:
        with workshop() as directory:
            begun = time.perf_counter()
            run((mpirun(), "-n", "100", "true"), directory, environment(directory / "home"))
            return time.perf_counter() - begun

    return Bench(
        "hundred ranks",
        "100 ranks of `true`: launched, finished, and each end in the journal.",
        "s",
        (
            Contender("subprocess.Popen x 100 (the floor)", bare),
            Contender("longboat run", longboat),
            Contender("mpirun -n 100", mpi),
        ),
        (Target("at most 1.5 s", "longboat run", lambda _: 1.5),),
    )


def planning() -> Bench:
    """A plan of a thousand ranks."""

    def once(ranks: int) -> float:
        with workshop() as directory:
            file = job(directory, ("true",), ranks)
            begun = time.perf_counter()
            run((LONGBOAT, "plan", file), directory, environment(directory / "home"))
            return time.perf_counter() - begun

    return Bench(
        "planning",
        "`longboat plan` of a job with many ranks.",
        "s",
        (Contender("2 ranks", lambda: once(2)), Contender("1,000 ranks", lambda: once(1000))),
        (Target("1,000 ranks in at most 0.3 s", "1,000 ranks", lambda _: 0.3),),
    )


def log_volume() -> Iterator[Bench]:
    """A rank that prints a million lines: exactness is checked in every round, time and memory are measured."""
    expected = "".join(f"line {number:07d} of a rank that talks a lot\n" for number in range(MANY)).encode()

    def to_file() -> float:
        with workshop() as directory, open(directory / "log", "wb") as log:
            begun = time.perf_counter()
            subprocess.run((PYTHON, LINES, str(MANY)), stdout=log, env=environment(directory), check=True)
            return time.perf_counter() - begun

    def longboat(count: int) -> tuple[float, float]:
        """Seconds, and the largest resident memory of any process of ours in MiB."""
        with workshop() as directory:
            file, home = job(directory, (PYTHON, LINES, str(count)), 1), directory / "home"
            env = environment(home)
            with Watch(f"LONGBOAT_HOME={home}", LINES) as watch:
                begun = time.perf_counter()
                run((LONGBOAT, "run", file), directory, env)
                took = time.perf_counter() - begun
            wanted = expected[: len(expected) * count // MANY]
            if (run_directory(home) / "logs/train/worker-0.log").read_bytes() != wanted:
                raise SystemExit("the log file is not what the rank printed")
            shown = subprocess.run(
                (LONGBOAT, "logs"), cwd=directory, env=env, stdout=subprocess.PIPE, check=True
            ).stdout
            if re.sub(rb"(?m)^.*?(?=line \d{7})", b"", shown) != wanted:
                raise SystemExit("`longboat logs` does not print what the rank printed")
            return took, watch.most / 1024

    yield Bench(
        "a million lines: time",
        "One rank prints 1,000,000 lines, one write each; log file and `longboat logs` are compared byte for byte.",
        "s",
        (
            Contender("python > file (the floor)", to_file),
            Contender("longboat run", lambda: longboat(MANY)[0]),
        ),
        (
            Target(
                "keeps up: at most 1.5x the floor and 0.5 s",
                "longboat run",
                lambda s: 1.5 * s["python > file (the floor)"].median + 0.5,
            ),
        ),
    )
    yield Bench(
        "a million lines: memory",
        "The largest resident memory of any process of Longboat while the rank prints.",
        "MiB",
        (
            Contender("10,000 lines", lambda: longboat(FEW)[1]),
            Contender("1,000,000 lines", lambda: longboat(MANY)[1]),
        ),
        (Target("flat: at most 8 MiB over 10,000 lines", "1,000,000 lines", lambda s: s["10,000 lines"].median + 8),),
    )


class Watch:
    """The largest resident memory (KiB) of the processes that have a mark in their environment, by /proc."""

    def __init__(self, mark: str, but: str) -> None:
        if not os.path.isdir("/proc/self"):
            raise NotMeasured("there is no /proc here")
        self._mark, self._but = mark.encode(), but.encode()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.most = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if not self.most:
            raise SystemExit("no process of Longboat was seen")

    def _look(self) -> None:
        while not self._over.wait(0.02):
            for name in filter(str.isdigit, os.listdir("/proc")):
                self.most = max(self.most, self._high_water(Path("/proc", name)))

    def _high_water(self, process: Path) -> int:
        try:
            marked = self._mark in (process / "environ").read_bytes().split(b"\0")
            if not marked or self._but in (process / "cmdline").read_bytes():
                return 0
            found = re.search(r"VmHWM:\s*(\d+)", (process / "status").read_text())
            return int(found[1]) if found else 0
        except OSError:
            return 0


def everything() -> dict[str, Callable[[], Sequence[Bench]]]:
    return {
        "launch": lambda: [launch()],
        "start-up": lambda: [start_up()],
        "many-ranks": lambda: [many_ranks()],
        "planning": lambda: [planning()],
        "log-volume": lambda: list(log_volume()),
        "qcnn": lambda: [qcnn()],
        "wide-deep": lambda: [reading(), training()],
        **recovery.everything(),
        **serving.everything(),
    }
