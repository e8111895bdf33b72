"""A job of a thousand pods on nodes that do not exist (KWOK): memory, requests, and how soon the commands answer.

The pods are scheduled and said to run, but nothing runs in them: no agent ever connects, so no rank
starts. What is shown is submitting, making, watching, listing and removing; a gang of a thousand
agents is what `make sim` and the tests of processes are for.
"""

from __future__ import annotations

import math
import re
import signal
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from bench.cluster.ground import Ground
from bench.cluster.report import Kept, Report, table
from bench.harness import NotMeasured
from longboat.engines.kubernetes.pod_exec import output
from longboat.runtime.kube_client import names

FEW, MANY = 10, 1000
PATIENCE = 300.0
LOOKS = 5
"""Times that `status` is asked; the median counts."""
WATCHED = 5.0
"""Seconds that `attach` looks on."""
STATUS_MOST = 1.0
MORE_MEMORY = 1.25
"""Times that the memory for few pods may become that for many."""
REQUESTS_MOST = 3.0
"""The driver's requests for each pod, besides those that it has for any run."""
JOB = """
name: crowd
image: {image}
shape: allreduce
ranks: {ranks}
run: "true"
resources: {{cpu: 0.05, memory: 16Mi}}
node_selector: {{type: kwok}}
tolerations: [{{key: kwok.x-k8s.io/node, operator: Exists}}]
"""


@dataclass(frozen=True)
class Found:
    ranks: int
    submit: float
    made: float
    status: float
    kubectl: float
    submit_rss: int
    status_rss: int
    attach_rss: int
    driver_rss: int
    requests: float
    removed: float


def measure(ground: Ground, _rounds: int) -> Report:
    if not ground.cluster.api.list("Node", "type=kwok"):
        raise NotMeasured("the cluster has no nodes of KWOK: python -m tests.cluster add kwok")
    few, many = _once(ground, FEW), _once(ground, MANY)
    rows = [
        _row("`longboat run --detach`, s", few.submit, many.submit),
        _row("until all pods are made, s", few.made, many.made),
        _row("`longboat status RUN`, s", few.status, many.status),
        _row("beside it: `kubectl get pods -l longboat.dev/run=RUN`, s", few.kubectl, many.kubectl),
        _row("memory of `run --detach`, MiB", few.submit_rss / 1024, many.submit_rss / 1024),
        _row("memory of `status`, MiB", few.status_rss / 1024, many.status_rss / 1024),
        _row("memory of `attach`, MiB", few.attach_rss / 1024, many.attach_rss / 1024),
        _row("memory of the driver, MiB", few.driver_rss / 1024, many.driver_rss / 1024),
        _row("requests of the driver", few.requests, many.requests),
        _row("`longboat rm` until nothing is left, s", few.removed, many.removed),
    ]
    each = (many.requests - few.requests) / (MANY - FEW)
    grown = max(many.submit_rss / few.submit_rss, many.status_rss / few.status_rss, many.attach_rss / few.attach_rss)
    kept = [
        Kept(f"status within {STATUS_MOST:g} s", f"{many.status:.2f} s", many.status <= STATUS_MOST),
        Kept(f"commands take at most {MORE_MEMORY:g} times the memory", f"{grown:.2f} times", grown <= MORE_MEMORY),
        Kept(f"the driver asks at most {REQUESTS_MOST:g} times for each pod", f"{each:.2f}", each <= REQUESTS_MOST),
    ]
    what = "One gang; its pods are on nodes that do not exist, so its ranks stay `starting`."
    return table("a crowd", what, ["", f"{FEW} pods", f"{MANY} pods"], rows, kept)


def _row(what: str, *values: float) -> list[str]:
    return [what, *(f"{value:.2f}" if value < 10 else f"{value:,.0f}" for value in values)]


def _once(ground: Ground, ranks: int) -> Found:
    job = ground.job(JOB.format(image=ground.image, ranks=ranks))
    there = ["--on", "kubernetes", "-n", ground.namespace]
    before = _asked(ground)
    submit, submit_rss, said = _timed(ground, ["run", str(job), *there, "--detach"])
    run = said.split()[0]
    begun = time.monotonic()
    _until(lambda: len(ground.cluster.api.list("Pod", names.selector(run, "rank"))) >= ranks)
    made = time.monotonic() - begun
    _until(lambda: _settled(ground, run))
    looks = [_timed(ground, ["status", run, *there]) for _ in range(LOOKS)]
    status, status_rss = statistics.median(look[0] for look in looks), max(look[1] for look in looks)
    kubectl = _kubectl(ground, run)
    _, attach_rss, _ = _timed(ground, ["attach", run, *there], WATCHED)
    driver_rss = _peak(ground, run)
    requests = _asked(ground) - before
    begun = time.monotonic()
    _timed(ground, ["rm", "--force", run, *there])
    _until(lambda: not ground.cluster.left())
    return Found(
        ranks,
        submit,
        made,
        status,
        kubectl,
        submit_rss,
        status_rss,
        attach_rss,
        driver_rss,
        requests,
        time.monotonic() - begun,
    )


def _timed(ground: Ground, words: list[str], interrupt: float = 0.0) -> tuple[float, int, str]:
    """Seconds, peak memory in KiB, and what a command printed; interrupted after a while if asked."""
    said = Path(ground.directory) / "said"
    begun = time.monotonic()
    with open(said, "w") as file:
        process = subprocess.Popen([*ground.longboat, *words], env=ground.environ, stdout=file, stderr=file)
    peak = 0
    while process.poll() is None:
        peak = max(peak, _most(Path(f"/proc/{process.pid}/status")))
        if interrupt and time.monotonic() > begun + interrupt:
            process.send_signal(signal.SIGINT)
            interrupt = math.inf
        time.sleep(0.005)
    if process.returncode and not interrupt:
        raise RuntimeError(f"{words}: {said.read_text()}")
    return time.monotonic() - begun, peak, said.read_text()


def _most(status: Path) -> int:
    """The most memory that a process has had so far, in KiB. Not ru_maxrss: that counts its parent's at the fork."""
    try:
        found = re.search(r"VmHWM:\s+(\d+)", status.read_text())
    except OSError:
        return 0
    return int(found[1]) if found else 0


def _kubectl(ground: Ground, run: str) -> float:
    command = ["kubectl", "get", "pods", "-n", ground.namespace, "-l", f"{names.RUN_LABEL}={run}"]
    took = []
    for _ in range(LOOKS):
        begun = time.monotonic()
        subprocess.run(command, env=ground.environ, check=True, capture_output=True)
        took.append(time.monotonic() - begun)
    return statistics.median(took)


def _settled(ground: Ground, run: str) -> bool:
    """All its pods have been given to nodes and are said to run: the cluster itself has come to rest."""
    pods = ground.cluster.api.list("Pod", names.selector(run, "rank"))
    return all(pod.get("status", {}).get("phase") == "Running" for pod in pods)


def _peak(ground: Ground, run: str) -> int:
    """The most memory that the driver had, in KiB."""
    pod = ground.cluster.reach(run)
    _, out, _ = output(ground.cluster.api, pod, ["cat", "/proc/1/status"], "driver")
    found = re.search(r"VmHWM:\s+(\d+)", out.decode())
    assert found is not None
    return int(found[1])


def _asked(ground: Ground) -> float:
    """Requests of service accounts outside of kube-system, as the API server counts them: the driver's alone."""
    raw = ground.cluster.api.server
    from longboat.runtime.kube_client.api import dial
    from longboat.runtime.kube_client.http_client import HttpConnection

    connection = HttpConnection(lambda: dial(raw, 15.0), raw.host)
    try:
        text = connection.request("GET", "/metrics", None, raw.headers(False)).read().decode()
    finally:
        connection.close()
    pattern = r'apiserver_flowcontrol_dispatched_requests_total\{flow_schema="service-accounts"[^}]*\} (\S+)'
    return sum(map(float, re.findall(pattern, text)))


def _until(done: object) -> None:
    assert callable(done)
    due = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > due:
            raise RuntimeError(f"not within {PATIENCE:g} s")
        time.sleep(0.2)
