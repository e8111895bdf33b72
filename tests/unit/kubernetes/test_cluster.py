"""A cluster that does not answer, or something else in its place: what people are told, over real sockets."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

import longboat
from longboat.cli.console import Console
from longboat.cli.main import main
from longboat.engines.kubernetes import cluster as clusters
from longboat.engines.kubernetes import replica
from longboat.engines.kubernetes.cluster import Cluster
from longboat.runtime import journal, run_layout
from longboat.runtime.errors import LongboatError
from longboat.runtime.kube_client import names

PAGE = b"<!DOCTYPE html><html><title>Please log in</title></html>"
Answer = Callable[[str], tuple[int, bytes]]
Serve = Callable[[Answer], int]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server that answers a path with a status and bytes; its port."""
    started: list[ThreadingHTTPServer] = []

    def start(answer: Answer) -> int:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                status, data = answer(self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        started.append(server)
        return server.server_port

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def kubeconfig(tmp_path: Path, server: str) -> str:
    found = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
    }
    file = tmp_path / f"config-{len(list(tmp_path.iterdir()))}"
    file.write_text(yaml.safe_dump(found))
    return str(file)


def remembered(tmp_path: Path, file: str) -> str:
    """A run in a cluster that this machine knows."""
    run = tmp_path / "clusters" / Cluster({"KUBECONFIG": file}).key / "runs" / "demo-abcd"
    run.mkdir(parents=True)
    (run / run_layout.REPLICA).write_text(json.dumps({"alive": True, "kubeconfig": file, "namespace": "default"}))
    return run.name


def asked(console: Console, tmp_path: Path, file: str, *words: str) -> LongboatError:
    environ = {"LONGBOAT_HOME": str(tmp_path), "KUBECONFIG": file}
    with pytest.raises(LongboatError) as error:
        main([*words], Console(console.out, console.err, environ))
    return error.value


@pytest.fixture
def unused() -> Iterator[int]:
    """A port at which nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.mark.parametrize("command", ["status", "why", "logs", "stop", "wait"])
def test_a_server_that_cannot_be_reached_is_named_with_what_to_check(
    command: str, console: Console, tmp_path: Path, unused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "PATIENCE", 0.0)
    file = kubeconfig(tmp_path, f"http://127.0.0.1:{unused}")
    error = asked(console, tmp_path, file, command, remembered(tmp_path, file))
    assert f"127.0.0.1:{unused} cannot be reached" in error.message
    assert "VPN" in error.hint
    assert "--context" in error.hint
    assert error.code == 2


def test_nothing_is_said_to_be_left_of_a_run_that_never_reached_its_cluster(
    console: Console, tmp_path: Path, unused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "PATIENCE", 0.0)
    job = tmp_path / "job.yaml"
    job.write_text("name: far\nimage: python:3.12\nrun: python -V\n")
    file = kubeconfig(tmp_path, f"http://127.0.0.1:{unused}")
    error = asked(console, tmp_path, file, "run", str(job), "--on", "kubernetes")
    assert error.message.startswith(f"the API server at 127.0.0.1:{unused} cannot be reached")
    assert "VPN" in error.hint


def test_python_is_told_the_same(tmp_path: Path, unused: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "PATIENCE", 0.0)
    run = remembered(tmp_path, kubeconfig(tmp_path, f"http://127.0.0.1:{unused}"))
    with pytest.raises(LongboatError, match="cannot be reached"):
        longboat.Run(run, str(tmp_path)).status()


@pytest.mark.parametrize("status", [200, 302, 502])
def test_a_page_to_log_in_at_is_no_api_server(
    status: int, console: Console, tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "PATIENCE", 0.0)
    port = serve(lambda _path: (status, PAGE))
    file = kubeconfig(tmp_path, f"http://127.0.0.1:{port}")
    error = asked(console, tmp_path, file, "status", remembered(tmp_path, file))
    assert "not a Kubernetes API server" in error.message
    assert "Please log in" in error.message
    assert "log in" in error.hint
    error = asked(console, tmp_path, file, "status", "--on", "kubernetes")
    assert "not a Kubernetes API server" in error.message


def test_a_namespace_that_is_missing_is_named_with_the_command_that_makes_it(
    console: Console, tmp_path: Path, serve: Serve
) -> None:
    told = {"kind": "Status", "reason": "NotFound", "message": 'namespaces "team" not found'}
    port = serve(lambda _path: (404, json.dumps(told).encode()))
    error = asked(console, tmp_path, kubeconfig(tmp_path, f"http://127.0.0.1:{port}"), "status", "-n", "team")
    assert "kubectl create namespace team" in error.hint


def test_clusters_behind_one_proxy_keep_their_copies_apart(tmp_path: Path, serve: Serve) -> None:
    def answer(path: str) -> tuple[int, bytes]:
        run = "demo-aaaa" if path.startswith("/k8s/one/") else "demo-bbbb"
        root = {"metadata": {"name": run, "creationTimestamp": "2026-01-01T00:00:00Z"}}
        return 200, json.dumps({"items": [root], "metadata": {}}).encode()

    port = serve(answer)
    for name in ("one", "two", "one"):
        cluster = Cluster({"KUBECONFIG": kubeconfig(tmp_path, f"http://127.0.0.1:{port}/k8s/{name}")})
        replica.known(cluster, str(tmp_path))
    copies = {path.name for path in (tmp_path / "clusters").glob("*/runs/*")}
    assert copies == {"demo-aaaa", "demo-bbbb"}


def test_the_copy_of_a_run_that_is_submitted_while_the_cluster_is_asked_stays(tmp_path: Path, serve: Serve) -> None:
    def answer(_path: str) -> tuple[int, bytes]:
        replica.RunReplica(cluster, str(tmp_path), "demo-new").mark(alive=True)
        return 200, json.dumps({"items": [], "metadata": {}}).encode()

    cluster = Cluster({"KUBECONFIG": kubeconfig(tmp_path, f"http://127.0.0.1:{serve(answer)}")})
    replica.RunReplica(cluster, str(tmp_path), "demo-gone").mark(alive=False)
    store, _ = replica.known(cluster, str(tmp_path))
    assert store.ids() == ["demo-new"]


def test_a_run_is_removed_right_behind_its_end_although_its_driver_is_slow_to_say_so(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(path: str) -> tuple[int, bytes]:
        asked.append(path)
        notes = {names.STATE: "succeeded" if len(asked) > 4 else "running"}
        return 200, json.dumps({"metadata": {"name": "demo-aaaa", "annotations": notes}}).encode()

    cluster = Cluster({"KUBECONFIG": kubeconfig(tmp_path, f"http://127.0.0.1:{serve(answer)}")})
    gone: list[str] = []
    monkeypatch.setattr(cluster, "remove", gone.append)
    copy = replica.RunReplica(cluster, str(tmp_path), "demo-aaaa")
    with pytest.raises(LongboatError, match="demo-aaaa is still running"):
        copy.remove()
    writer = journal.JournalWriter(str(copy.path))
    writer.write("run.ended", state="succeeded", code=0)
    writer.close()
    copy.remove()
    assert gone == ["demo-aaaa"]
    assert len(asked) == 5, "once more than it was told that the run is under way"
