"""What a test of a cluster run has in hand: job files, the command line, the cluster to look into and to disturb."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from longboat.engines.kubernetes import pod_exec
from longboat.engines.kubernetes.cluster import Cluster, NoResponse
from longboat.engines.kubernetes.replica import RunReplica
from longboat.runtime import journal
from longboat.runtime.kube_client import names
from longboat.runtime.kube_client.api import Manifest
from tests.e2e import jobs

PROGRAMS = Path(__file__).parent / "programs"
LONGBOAT = [sys.executable, "-m", "longboat"]
PATIENCE = 600.0
"""Seconds that anything may take on a machine that is slow and busy: nobody waits for them but who fails."""

T = TypeVar("T")


class Place:
    def __init__(self, namespace: str, directory: Path) -> None:
        self.namespace = namespace
        self.directory = directory
        self.home = directory / "home"
        self.kubeconfig = os.environ["KUBECONFIG"]
        self.cluster = Cluster(os.environ, namespace=namespace)

    def job(self, text: str, *programs: str, script: str = "") -> Path:
        """A job file, with programs beside it, or write.sh with a script."""
        place = self.directory / f"job-{len(list(self.directory.iterdir()))}"
        place.mkdir()
        (place / "job.yaml").write_text(text)
        for name in programs:
            shutil.copy(PROGRAMS / name, place)
        if script:
            (place / "write.sh").write_text(script)
        return place

    def longboat(self, *words: str | Path, code: int | None = 0, timeout: float = PATIENCE) -> str:
        """What the command prints, both streams; its exit code must be the one expected."""
        done = subprocess.run(
            [*LONGBOAT, *map(str, words)],
            env={**os.environ, "LONGBOAT_HOME": str(self.home), "NO_COLOR": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert code is None or done.returncode == code, done.stdout
        return done.stdout

    def run(self, job: Path, *words: str, code: int | None = 0) -> str:
        """Runs a job to its end; its id."""
        said = self.longboat("run", job, "--on", "kubernetes", "-n", self.namespace, *words, code=code)
        return said.partition("submitted ")[2].partition(" ")[0]

    def start(self, job: Path, *words: str) -> str:
        said = self.longboat("run", job, "--on", "kubernetes", "-n", self.namespace, "--detach", *words)
        return said.split()[0]

    def events(self, run: str) -> list[dict[str, Any]]:
        """The journal, as it stands in the cluster."""
        copy = RunReplica(self.cluster, str(self.home), run)
        copy.mark(alive=True)
        copy.sync()
        return journal.read(str(copy.path))

    def until(self, what: Callable[[], T], patience: float = PATIENCE) -> T:
        """The first true value that `what` gives; a driver that is just being replaced is asked again."""
        due = time.monotonic() + patience
        while True:
            with contextlib.suppress(NoResponse):
                if found := what():
                    return found
            assert time.monotonic() < due, f"not within {patience:g} s"
            time.sleep(0.2)

    def steps(self, run: str) -> int:
        """The highest step that a rank has reported."""
        points = [point for event in self.events(run) for point in event.get("points", ())]
        return max((int(point.get("step", 0)) for point in points), default=0)

    def step_of(self, run: str, rank: int) -> int:
        """The highest step that one rank has reported."""
        reports = (e for e in self.events(run) if e["ev"] == "rank.report" and e["rank"] == rank)
        return max((int(point.get("step", 0)) for event in reports for point in event["points"]), default=0)

    def saved(self, run: str, owner: str = "") -> bool:
        """Whether a checkpoint is complete behind the first step: of the gang, or of one rank that saves for itself."""
        found = (e for e in self.events(run) if e["ev"] == "checkpoint" and e.get("owner", "") == owner)
        return any(event["step"] > 0 for event in found)

    def ended(self, run: str) -> dict[str, Any]:
        """Waits for the run's last event."""
        self.longboat("wait", run, "--on", "kubernetes", "-n", self.namespace, code=None)
        return self.events(run)[-1]

    def pods(self, run: str) -> dict[str, Manifest]:
        """Seat -> pod, of the ranks' pods that are there and not going away."""
        found = {}
        for pod in self.cluster.api.list("Pod", names.selector(run, "rank")):
            labels = pod["metadata"]["labels"]
            if not pod["metadata"].get("deletionTimestamp"):
                found[f"{labels[names.ROLE_LABEL]}-{labels[names.RANK_LABEL]}"] = pod
        return found

    def release(self, run: str) -> None:
        """Training that is held (`jobs.gang`) goes on."""
        pod = self.pods(run)["worker-0"]["metadata"]["name"]
        code, _, said = pod_exec.output(self.cluster.api, pod, ["touch", jobs.GO], names.CONTAINER)
        assert code == 0, said.decode()

    def file(self, run: str, path: str) -> str:
        return self.longboat("cat", f"{run}:{path}", "--on", "kubernetes", "-n", self.namespace)

    def log(self, run: str, rank: int, *words: str) -> list[str]:
        there = ("--on", "kubernetes", "-n", self.namespace)
        return self.longboat("logs", run, *there, "--rank", str(rank), "--raw", *words).splitlines()


def lives(lines: list[str]) -> dict[str, list[int]]:
    """Life -> the numbers of its lines, from what programs/gang_sgd.py prints."""
    found: dict[str, list[int]] = {}
    for line in lines:
        words = line.split()
        if words[:1] == ["life"]:
            found.setdefault(words[1], []).append(int(words[3]))
    return found


def told(events: list[dict[str, Any]], rank: int) -> dict[str, int]:
    """Generation -> the last line that a rank said it had printed."""
    found: dict[str, int] = {}
    for event in events:
        if event["ev"] == "rank.report" and event["rank"] == rank:
            for point in event["points"]:
                found[str(event["gen"])] = max(found.get(str(event["gen"]), -1), int(point["lines"]))
    return found


def pretty(value: object) -> str:
    return json.dumps(value, indent=2)
