"""Processes: several on one port, one that dies, all that stop; and what the command says."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from longboat.serve.worker_processes import bind
from tests.commands import Longboat
from tests.serve import making
from tests.serve.serving import PATIENCE, serving

ROW = [[0.5] * 784]


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_process_that_is_killed_is_replaced_and_the_others_answer(models: Path, tmp_path: Path) -> None:
    with serving(tmp_path, models / "mnist", "--workers", "2") as server:
        first = children(server.process.pid)
        assert len(first) == 2
        for _ in range(20):
            server.predict("mnist", ROW)
        os.kill(first[0], signal.SIGKILL)
        server.until(lambda: len(set(children(server.process.pid)) - set(first)) == 1)
        assert f"server process {first[0]} exited (killed by signal 9)" in server.said.read_text()

        def counted() -> bool:
            text = server.get("/metrics").body.decode()
            found = re.search(r'longboat_requests_total{model="mnist",protocol="rest",code="200"} (\d+)', text)
            return found is not None and int(found[1]) >= 30

        for _ in range(30):
            server.predict("mnist", ROW)
        server.until(counted)
        assert server.stop() == 0
    for pid in first:
        assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_that_lingers_is_not_ready_answers_and_keeps_no_connection(
    models: Path, tmp_path: Path, workers: str
) -> None:
    with serving(tmp_path, models / "mnist", "--workers", workers, "--linger", "60") as server:
        assert "connection" not in server.get("/readyz").headers
        server.process.send_signal(signal.SIGTERM)
        # Each connection may lead to another process, and one of them hears of the signal later.
        server.until(lambda: all(server.get("/readyz").status == 503 for _ in range(20)))
        answer = server.post("/v1/models/mnist:predict", {"instances": ROW})
        assert (answer.status, answer.headers["connection"]) == (200, "close"), "the next request is to go elsewhere"
        assert server.get("/healthz").status == 200
        assert server.stop() in (0, 130), "a second signal does not wait"


def test_the_debug_log_names_models_batches_and_refused_requests_with_their_id(models: Path, tmp_path: Path) -> None:
    with serving(tmp_path, models / "mnist", "-v") as server:
        server.predict("mnist", ROW)
        path = "/v1/models/mnist:predict"
        assert server.post(f"{path}?token=hidden", {"instances": 7}, {"X-Request-Id": "abc-1"}).status == 400
        server.until(lambda: "refused" in server.said.read_text())
        log = server.said.read_text()
    assert "loaded version 1 of mnist" in log
    assert "mnist: batch of 1 rows in" in log
    assert f"refused POST {path}, request id 'abc-1': INVALID: 'instances' must be a list" in log
    assert "hidden" not in log


def test_a_server_without_a_level_logs_nothing_and_an_unknown_level_is_refused(models: Path, tmp_path: Path) -> None:
    with serving(tmp_path, models / "mnist") as server:
        server.predict("mnist", ROW)
        assert server.post("/v1/models/mnist:predict", {}).status == 400
        assert server.stop() == 0
        assert " server[" not in server.said.read_text()
    words = [sys.executable, "-m", "longboat", "serve", str(models / "mnist")]
    environ = {**os.environ, "LONGBOAT_LOG": "loud"}
    said = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (said.returncode, said.stdout) == (2, "")
    assert "use one of: debug, info, warning, error" in said.stderr


def test_a_killed_parent_takes_its_processes_along(models: Path, tmp_path: Path) -> None:
    with serving(tmp_path, models / "mnist", "--workers", "2", "--no-grpc") as server:
        own = children(server.process.pid)
        server.process.kill()
        server.process.wait()
        server.until(lambda: not any(_alive(pid) for pid in own))


def _alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def unread(port: int) -> list[int]:
    """For both ends of every connection to the port: bytes that are still under way to the server."""
    here, found = f":{port:04X}", []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, mine, other, state, queues, *_ = line.split()
        unsent, unheard = queues.split(":")
        if state == "01" and mine.endswith(here):
            found.append(int(unheard, 16))
        elif state == "01" and other.endswith(here):
            found.append(int(unsent, 16))
    return found


@pytest.mark.parametrize("workers", ["1", "2"])
def test_sigterm_answers_what_was_asked_then_ends(workers: str, tmp_path: Path) -> None:
    making.heavy(tmp_path / "heavy", width=1500, layers=8)
    body = b'{"instances":[' + b",".join([b"[" + b",".join([b"0.5"] * 1500) + b"]"] * 16) + b"]}"
    head = f"POST /v1/models/heavy:predict HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with serving(tmp_path, tmp_path / "heavy", "--workers", workers, "--no-grpc") as server:
        idle, *askers = (socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(5))
        for asker in askers:
            asker.sendall(head + body)
        server.until(lambda: unread(server.port) == [0] * 10)
        assert server.stop() == 0
        for asker in askers:
            assert asker.recv(65536).startswith(b"HTTP/1.1 200 ")
            asker.close()
        idle.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port))


EARLY = """
import os, signal, sys
from tests.hasty import signal_children_as_they_begin
from longboat.serve.worker_processes import _Parent
from longboat.serve.settings import ServerSettings

class Parent(_Parent):
    def _serve(self, index, write):
        print("serves on", flush=True)

signal_children_as_they_begin(signal.SIGTERM)
parent = Parent(ServerSettings(()), None, print, print, 0.0)
signal.signal(signal.SIGTERM, parent._signal)
parent._start(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_process_that_is_told_to_stop_as_it_begins_does_not_serve_on() -> None:
    done = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_ctrl_c_ends_it_quietly(models: Path, tmp_path: Path) -> None:
    with serving(tmp_path, models / "mnist", "--no-grpc") as server:
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE) == 130
        assert "Traceback" not in server.said.read_text()


def test_a_taken_port_is_said_with_the_fix(models: Path, longboat: Longboat) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for words in (
            ("--port", port, "--no-grpc"),
            ("--port", "0", "--grpc-port", port),
            ("--port", port, "--workers", "2"),
        ):
            said = longboat("serve", models / "mnist", *words)
            assert said.code == 2
            assert f"port {port} on 127.0.0.1 is already in use" in said.err
            assert "--port 0 --grpc-port 0" in said.err


def test_the_ready_line_and_the_next_commands(models: Path, tmp_path: Path) -> None:
    with serving(tmp_path, models / "mnist", models / "table") as server:
        server.until(lambda: "Ctrl-C" in server.said.read_text())
        assert f"longboat predict http://127.0.0.1:{server.port}/v1/models/mnist" in server.said.read_text()
        assert server.get("/v1/models").json == {
            "models": [
                {"name": "mnist", "versions": ["1"], "title": "Digits"},
                {"name": "table", "versions": ["1"], "title": "table"},
            ]
        }


def test_an_open_host_without_a_token_is_warned_of(models: Path, tmp_path: Path) -> None:
    with serving(tmp_path, models / "mnist", "--host", "0.0.0.0", "--no-grpc") as server:
        assert "warning: no token" in server.said.read_text()
    with serving(tmp_path, models / "mnist", "--host", "0.0.0.0", "--no-grpc", "--token", "x") as server:
        assert "warning" not in server.said.read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{models}/mnist", "--port", "70000"], "--port 70000: must be a number from 0 to 65535"),
        (["{models}/mnist", "--version", "newest"], "--version newest: must be latest, all, or the number"),
        (["{models}/mnist", "--version", "9"], "has no complete version"),
        (["{models}/mnist", "--tls-cert", "x"], "--tls-cert and --tls-key must be given together"),
        (["{models}/mnist", "{models}/mnist"], "two models are called 'mnist'"),
        (["{models}", "--name", "x"], "has several models"),
        (["a/b=c"], "neither a model directory nor a run"),
        (["nobody"], "neither a model directory nor a run"),
        (["{models}/words.txt"], "is not a model"),
        (["{models}/mnist", "--token", "two words"], "without spaces"),
        (["{models}/mnist", "--token-file", "/nowhere"], "--token-file /nowhere"),
        (["{models}/mnist", "--host", "256.1.1.1"], "--host 256.1.1.1"),
    ],
)
def test_wrong_use_is_told(models: Path, longboat: Longboat, words: list[str], message: str) -> None:
    said = longboat("serve", *(word.format(models=models) for word in words), "--no-grpc")
    assert said.code == 2
    assert message in said.err


def test_names_are_given_on_the_command_line(models: Path, tmp_path: Path) -> None:
    with serving(tmp_path, f"digits={models / 'mnist'}", f"numbers={models / 'mnist' / '1'}", "--no-grpc") as server:
        assert server.predict("digits", ROW) == server.predict("numbers", ROW)


def test_models_are_listed_with_their_figures(models: Path, longboat: Longboat) -> None:
    said = longboat("models", models)
    assert said.code == 0
    line = next(line for line in said.out.splitlines() if line.startswith("mnist"))
    assert line.split()[:5] == ["mnist", "1", "image", "accuracy", "0.5"]
    assert "longboat serve" in said.err
    import json

    (told,) = [each for each in json.loads(longboat("models", models, "--json").out) if each["name"] == "table"]
    assert told["inputs"][1] == {"name": "b", "dtype": "int64", "shape": [None, 3]}


def test_a_damaged_model_is_found_by_a_check(tmp_path: Path, longboat: Longboat) -> None:
    making.digits(tmp_path / "mnist")
    weights = tmp_path / "mnist/1/weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    assert longboat("models", tmp_path).code == 0
    said = longboat("models", tmp_path, "--check")
    assert said.code == 1
    assert "weights.safetensors: its contents differ from what was saved" in said.err
    assert longboat("models", tmp_path / "nothing").code == 2
    assert "no models in any run" in longboat("models").err


def test_every_address_is_those_of_ipv4_and_ipv6(models: Path, tmp_path: Path) -> None:
    with serving(tmp_path, models / "mnist", "--host", "::") as server:
        hosts = ["127.0.0.1", *(["::1"] if socket.has_dualstack_ipv6() else [])]
        for host in hosts:
            for port in (server.port, server.grpc_port):
                socket.create_connection((host, port), timeout=PATIENCE).close()


def test_every_address_is_those_of_ipv4_where_the_kernel_has_no_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with bind("::", 0, shared=False) as opened:
        assert opened.getsockname()[0] == "0.0.0.0"
