"""Programs in pods: a real WebSocket, over IPv6 where there is any, to a server that runs what it is asked to."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from longboat.engines.kubernetes import rank_exec
from longboat.engines.kubernetes.cluster import Cluster, NoResponse
from longboat.engines.kubernetes.pod_files import PodFiles
from longboat.engines.kubernetes.replica import RunReplica
from longboat.engines.kubernetes.replica_state import current as standing
from longboat.runs.run_state import RankState
from longboat.runs.watch import RunWatch
from longboat.runtime import filetree
from longboat.runtime.errors import FAILED, LongboatError
from longboat.runtime.kube_client import names
from tests.local.place import until

DESK = """import sys
from longboat.runtime.kube_client import names
from longboat.runtime.pod import pod_commands
names.RUN = sys.argv[1]
sys.exit(pod_commands.read(sys.argv[2:]))
"""
RUNNING = {
    "metadata": {
        "name": "it",
        "labels": {names.STAGE_LABEL: "training", names.ROLE_LABEL: "worker", names.RANK_LABEL: "0"},
    },
    "spec": {"containers": []},
    "status": {
        "phase": "Running",
        "containerStatuses": [{"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}],
    },
}


class Pods(ThreadingHTTPServer):
    """Every pod runs; `read` is answered by the real desk."""

    daemon_threads = True
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def __init__(self, run: Path) -> None:
        super().__init__(("::1" if self.address_family is socket.AF_INET6 else "127.0.0.1", 0), Handler)
        self.run = run
        self.hosts: list[str] = []
        self.words: list[str] = []
        self.dying = 0
        """So many programs are killed with their pod before they have said anything."""
        self.order: dict[str, str] = {}
        """How the run is to go on."""
        self.state = "submitted"
        self.pod: dict[str, Any] = RUNNING
        self.torn = ""
        """When the connection to a program breaks: before it was started, or behind that."""
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Pods

    def do_GET(self) -> None:
        self.server.hosts.append(self.headers["Host"])
        url = urlsplit(self.path)
        if url.path.endswith("/exec"):
            self.execute(parse_qs(url.query))
            return
        found: dict[str, Any] = {"metadata": {}, "items": [RUNNING]}
        if url.path.endswith("-driver-0"):
            found = self.server.pod
        elif "/configmaps/" in url.path:
            meta = {"name": "demo-abcd", "annotations": {names.STATE: self.server.state}}
            found = {"metadata": meta, "data": {names.ORDERS: json.dumps(self.server.order)}}
        data = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def execute(self, query: dict[str, list[str]]) -> None:
        self.close_connection = True
        if self.server.torn == "before":
            return
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        if self.server.torn == "behind":
            return
        *_, word = query["command"]
        self.server.words.append(word)
        given = b""
        while "stdin" in query and not given.endswith(b"\n"):
            given += self.message()[1:]
        desk = [sys.executable, "-c", DESK, str(self.server.run), word]
        if self.server.dying:
            self.server.dying -= 1
            desk = ["sh", "-c", "exit 137"]  # as a node tells it
        done = subprocess.run(desk, input=given, capture_output=True, check=False)
        self.say(1, done.stdout)
        self.say(2, done.stderr)
        status: dict[str, Any] = {"status": "Success"}
        if done.returncode:
            causes = [{"reason": "ExitCode", "message": str(done.returncode)}]
            status = {"status": "Failure", "details": {"causes": causes}}
        self.say(3, json.dumps(status).encode())

    def message(self) -> bytes:
        _, second = self.rfile.read(2)
        length = second & 127
        if length >= 126:
            length = int.from_bytes(self.rfile.read(2 if length == 126 else 8), "big")
        mask, data = self.rfile.read(4), self.rfile.read(length)
        return bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))

    def say(self, channel: int, data: bytes) -> None:
        for start in range(0, len(data), 30_000):
            piece = bytes([channel]) + data[start : start + 30_000]
            self.wfile.write(bytes([130, 126]) + len(piece).to_bytes(2, "big") + piece)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    found = Pods(tmp_path / "there")
    yield found
    found.shutdown()
    found.server_close()


def copy_of(pods: Pods, tmp_path: Path) -> RunReplica:
    host = "[::1]" if pods.address_family is socket.AF_INET6 else "127.0.0.1"
    found = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://{host}:{pods.server_port}"}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(found))
    return RunReplica(Cluster({"KUBECONFIG": str(tmp_path / "config")}), str(tmp_path / "home"), "demo-abcd")


@pytest.mark.parametrize("ranks", [2, 4000])
def test_a_copy_is_brought_up_to_date_however_many_logs_there_are(pods: Pods, tmp_path: Path, ranks: int) -> None:
    copy = copy_of(pods, tmp_path)
    for rank in range(ranks):
        for run, text in ((pods.run, b"one\ntwo\n"), (copy.path, b"one\n")):
            log = run / "logs" / "training" / f"worker-{rank}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_bytes(text)
    (pods.run / "events.jsonl").write_text('{"ev":"run.started"}\n')
    copy.sync(logs=True)
    logs = list((copy.path / "logs/training").iterdir())
    assert {log.read_bytes() for log in logs} == {b"one\ntwo\n"}
    assert len(logs) == ranks
    assert (pods.words == ["-"]) == (ranks > 2), "a short question is a word, which older drivers take"


def test_the_host_of_a_connection_is_a_bracketed_address(pods: Pods, tmp_path: Path) -> None:
    copy = copy_of(pods, tmp_path)
    pods.run.mkdir()
    (pods.run / "events.jsonl").write_text('{"ev":"run.started"}\n')
    copy.sync()
    host = "[::1]" if pods.address_family is socket.AF_INET6 else "127.0.0.1"
    assert set(pods.hosts) == {f"{host}:{pods.server_port}"}
    assert len(pods.hosts) == 3, "for the root, the pod and the program"


def test_who_was_asked_and_died_with_its_pod_is_asked_again(pods: Pods, tmp_path: Path) -> None:
    copy = copy_of(pods, tmp_path)
    pods.run.mkdir()
    (pods.run / "events.jsonl").write_text('{"ev":"run.started"}\n')
    pods.dying = 2
    copy.sync()
    assert copy.has_journal
    pods.dying = 3
    with pytest.raises(NoResponse, match="the driver of demo-abcd ended during the request"):
        copy.sync()


ASKED: dict[str, Callable[[Cluster, Path], object]] = {
    "exec": lambda cluster, _: rank_exec.execute(
        cluster, "demo-abcd", RankState("training", "worker", 0), ["cat"], environ={}
    ),
    "ls": lambda cluster, _: PodFiles(cluster, "demo-abcd", None).entries("", 1),
    "cp": lambda cluster, here: PodFiles(cluster, "demo-abcd", None).store(
        "output", "big", filetree.items(str(here), "big")
    ),
}


@pytest.mark.parametrize("torn", ["before", "behind"])
@pytest.mark.parametrize("command", ASKED)
def test_a_connection_that_breaks_is_told_as_that(pods: Pods, tmp_path: Path, torn: str, command: str) -> None:
    cluster = copy_of(pods, tmp_path).cluster
    (tmp_path / "big").write_bytes(bytes(10_000_000))
    pods.torn = torn
    with pytest.raises(LongboatError, match=r"^the connection to the cluster was lost") as told:
        ASKED[command](cluster, tmp_path)
    assert told.value.code == FAILED


Events = list[dict[str, object]]
ENDED: Events = [{"ev": "run.started"}, {"ev": "run.ended", "state": "stopped", "code": 130}]
AGAIN: Events = [{"ev": "run.started", "order": "two"}]


def write(run: Path, *events: dict[str, object]) -> None:
    run.mkdir(exist_ok=True)
    lines = [json.dumps({"t": 1e9 + n, "n": n, "run": "demo-abcd", **event}) for n, event in enumerate(events, 1)]
    (run / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("known", [[], ENDED])
def test_an_end_behind_which_somebody_else_let_the_run_go_on_is_none(pods: Pods, tmp_path: Path, known: Events) -> None:
    copy = copy_of(pods, tmp_path)
    copy.mark(alive=True)
    write(copy.path, *known)
    pods.order = {"order": "two"}
    write(pods.run, *ENDED)
    copy.sync()
    assert (copy.is_complete(), copy.is_restarting) == (False, True), "its driver has yet to write"
    write(pods.run, *ENDED, *AGAIN)
    copy.sync()
    assert (copy.is_complete(), copy.is_restarting) == (False, False)
    assert standing(copy).state == "running"
    write(pods.run, *ENDED, *AGAIN, {"ev": "run.ended", "state": "succeeded", "code": 0})
    copy.sync()
    assert copy.is_complete()
    another = copy_of(pods, tmp_path)
    asked = len(pods.words)
    another.sync()
    assert another.is_complete()
    assert len(pods.words) == asked, "nobody has to be asked for what is known"


def test_a_run_that_comes_up_again_is_starting_and_no_longer_stopped(pods: Pods, tmp_path: Path) -> None:
    copy = copy_of(pods, tmp_path)
    copy.mark(alive=True)
    write(pods.run, *ENDED)
    assert (standing(copy).state, standing(copy).code) == ("stopped", 130)
    pods.order = {"order": "two"}
    state = standing(copy)
    assert (state.state, state.code, state.over) == ("starting", None, False)
    watch = RunWatch(copy.path, copy.after)
    watch.poll()
    assert not watch.over


def test_the_end_of_a_life_behind_which_there_is_yet_another_one_is_none(pods: Pods, tmp_path: Path) -> None:
    copy = copy_of(pods, tmp_path)
    write(copy.path, *ENDED)
    write(pods.run, *ENDED, *AGAIN, {"ev": "run.ended", "state": "failed", "code": 1})
    pods.order = {"order": "three"}
    copy.sync()
    assert (copy.is_complete(), copy.is_restarting) == (False, True)


def test_a_run_that_served_and_was_let_go_on_is_starting(pods: Pods, tmp_path: Path) -> None:
    copy = copy_of(pods, tmp_path)
    copy.mark(alive=True)
    write(pods.run, {"ev": "run.started"}, {"ev": "run.serving"})
    assert standing(copy).state == "serving"
    pods.order = {"order": "two"}
    assert standing(copy).state == "starting"


def test_an_order_that_failed_before_a_driver_could_take_it_up_has_ended(pods: Pods, tmp_path: Path) -> None:
    copy = copy_of(pods, tmp_path)
    pods.order, pods.state = {"order": "two"}, "failed"
    write(pods.run, *ENDED, {"ev": "run.ended", "state": "failed", "code": 1})
    copy.sync()
    assert copy.is_complete()


def test_the_end_of_an_order_that_no_driver_could_begin_is_one_before_the_root_says_so(
    pods: Pods, tmp_path: Path
) -> None:
    copy = copy_of(pods, tmp_path)
    pods.order = {"order": "two"}
    write(copy.path, *ENDED)
    write(pods.run, *ENDED, {"ev": "run.ended", "state": "failed", "code": 1, "order": "two"})
    copy.sync()
    assert (copy.is_complete(), copy.is_restarting) == (True, False)


def test_a_run_that_comes_up_is_stopped_once_there_is_somebody_to_ask(
    pods: Pods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copy_of(pods, tmp_path)
    pods.order = {"order": "two"}
    write(pods.run, *ENDED)
    asked: list[str] = []

    def stop(run: str, *_: object) -> bool:
        asked.append(run)
        write(pods.run, *ENDED, *AGAIN)
        return len(asked) > 1

    monkeypatch.setattr(copy.cluster, "stop", stop)
    assert copy.stop("me", False, None)
    assert len(asked) == 2, "the first one who was asked did not drive it yet"


WAITING = {**RUNNING, "status": {"phase": "Pending"}}


def test_how_a_run_stands_whose_next_driver_has_no_node_yet_is_told_at_once(pods: Pods, tmp_path: Path) -> None:
    copy = copy_of(pods, tmp_path)
    write(copy.path, *ENDED)
    pods.order, pods.pod = {"order": "two"}, WAITING
    assert standing(copy).state == "starting"
    with pytest.raises(LongboatError, match="demo-abcd was resumed, but its driver did not start"):
        copy.stop("me", False, 0.0)
    copy.follow_if_running(logs=False)
    watch = RunWatch(copy.path, copy.after)
    watch.poll()
    assert (watch.over, pods.words) == (False, []), "nobody is there to be asked"
    write(pods.run, *ENDED, *AGAIN, {"ev": "run.ended", "state": "succeeded", "code": 0})
    pods.pod = RUNNING
    until(lambda: watch.poll() is not None and watch.over, "the end")
    assert watch.state.state == "succeeded"
