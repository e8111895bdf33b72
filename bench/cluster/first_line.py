"""From submitting to the first line that the user's program prints, beside a Job of Kubernetes with the same image."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from pathlib import Path

from bench.cluster.ground import Ground
from bench.cluster.report import Report
from bench.harness import Bench, Contender, Target, markdown
from bench.harness import measure as measured
from longboat.runtime.kube_client.api import Api, Manifest, dial
from longboat.runtime.kube_client.http_client import HttpConnection

LINE = "the first line"
BARE, WHOLE = "longboat run --volume none", "longboat run"
SPARE = 1.0
"""Seconds that a run may take longer than a Job."""
PATIENCE = 120.0


def measure(ground: Ground, rounds: int) -> Report:
    found = measured(_bench(ground), rounds)
    return Report(markdown(found), sum(verdict.state == "missed" for verdict in found.verdicts))


def _bench(ground: Ground) -> Bench:
    job = ground.job(f"name: first\nimage: {ground.image}\nrun: echo {LINE}; sleep 1\n")
    raw, claimed = "a raw Job", "a raw Job with a new claim"
    return Bench(
        "first line",
        "From submitting until the first line of the program is seen: `longboat run --on kubernetes`, from the start "
        "of the command until it prints the line; a Job with the same image and command, from its creation until the "
        "line comes through the API server. A run keeps its directory on a new claim unless `--volume none`; whatever "
        "pod has a new claim waits for it, which is why a Job with one stands beside it.",
        "s",
        [
            Contender(raw, lambda: _job(ground, claim=False)),
            Contender(claimed, lambda: _job(ground, claim=True)),
            Contender(BARE, lambda: _run(ground, job, "--volume", "none")),
            Contender(WHOLE, lambda: _run(ground, job)),
        ],
        [
            Target(f"without a claim: at most {SPARE:g} s above a raw Job", BARE, lambda f: f[raw].median + SPARE),
            Target(f"with one: at most {SPARE:g} s above such a Job", WHOLE, lambda f: f[claimed].median + SPARE),
        ],
    )


def _run(ground: Ground, job: Path, *words: str) -> float:
    begun = time.monotonic()
    process = subprocess.Popen(
        [*ground.longboat, "run", str(job), "--on", "kubernetes", "-n", ground.namespace, *words],
        env=ground.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    seen, said = 0.0, b""
    while line := process.stdout.readline():
        said += line
        if LINE.encode() in line:
            seen = time.monotonic() - begun
            break
    process.send_signal(signal.SIGINT)
    process.communicate()
    if not seen:
        raise RuntimeError(f"the run did not print its line:\n{said.decode()}")
    ground.empty()
    return seen


def _job(ground: Ground, claim: bool) -> float:
    api = ground.cluster.api
    name = f"raw-{uuid.uuid4().hex[:6]}"
    path = f"/apis/batch/v1/namespaces/{ground.namespace}/jobs"
    begun = time.monotonic()
    if claim:
        api.create(_claim(name))
    api.request("POST", path, _manifest(name, ground.image, claim))
    pod = ""
    while not pod:
        found = api.list("Pod", f"batch.kubernetes.io/job-name={name}")
        pod = found[0]["metadata"]["name"] if found else ""
    while not _line(api, pod):
        if time.monotonic() - begun > PATIENCE:
            raise RuntimeError(f"the Job printed nothing within {PATIENCE:g} s")
        time.sleep(0.01)
    seen = time.monotonic() - begun
    options: Manifest = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
    api.request("DELETE", f"{path}/{name}", options)
    api.delete("Pod", pod, grace=0)
    if claim:
        api.delete("PersistentVolumeClaim", name)
    ground.empty()
    return seen


def _line(api: Api, pod: str) -> bool:
    """Whether the pod's first line has come; waits for it where the container runs."""
    connection = HttpConnection(lambda: dial(api.server, PATIENCE), api.server.host)
    try:
        answer = connection.request("GET", f"{api.path('Pod', pod)}/log?follow=true", None, api.server.headers(False))
        return answer.status == 200 and LINE.encode() in next(answer.lines(), b"")
    finally:
        connection.close()


def _claim(name: str) -> Manifest:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


def _manifest(name: str, image: str, claim: bool) -> Manifest:
    container: Manifest = {
        "name": "main",
        "image": image,
        "command": ["sh", "-c", f"echo {LINE}; sleep 1"],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {"runAsNonRoot": True, "runAsUser": os.getuid() or 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    spec: Manifest = {"restartPolicy": "Never", "securityContext": security, "containers": [container]}
    if claim:
        container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
        spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"backoffLimit": 0, "template": {"spec": spec}},
    }
