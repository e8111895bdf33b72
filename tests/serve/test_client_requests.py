"""`longboat predict` and `longboat bench` against a real server, and against sockets that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longboat.runtime.errors import LongboatError
from longboat.serve.client import load_test, target
from longboat.serve.client.http_channel import ClientConnection
from longboat.serve.client.report import Iteration
from tests.commands import Longboat
from tests.serve import making
from tests.serve.serving import PATIENCE, Serving, serving

PROTOCOLS = ("rest", "v2", "grpc")


def address(server: Serving, protocol: str, model: str) -> str:
    if protocol == "grpc":
        return f"grpc://127.0.0.1:{server.grpc_port}/{model}"
    return f"http://127.0.0.1:{server.port}/{'v1' if protocol == 'rest' else 'v2'}/models/{model}"


def noise(path: Path, count: int, seed: int = 5, wrong: int = 0) -> Path:
    """Rows for the MLP with the label it gives them; the first `wrong` of them with another."""
    x = np.random.default_rng(seed).random((count, 784), dtype=np.float32).round(3)
    labels = making.expected(0, x).argmax(axis=1)
    labels[:wrong] = (labels[:wrong] + 1) % 10
    lines = [f"{label}," + ",".join(f"{value:.3f}" for value in row) for label, row in zip(labels, x, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_gives_the_same_predictions(
    longboat: Longboat, server: Serving, tmp_path: Path, protocol: str
) -> None:
    data = noise(tmp_path / "rows.csv", 7)
    said = longboat("predict", address(server, protocol, "mnist"), data, "--json")
    assert said.code == 0, said.err
    told = json.loads(said.out)
    rows = np.loadtxt(data, delimiter=",", dtype=np.float32)[:, 1:]
    found = np.array([each["outputs"]["probabilities"] for each in told["predictions"]])
    assert found == pytest.approx(making.expected(0, rows), abs=1e-5)
    assert [str(each["prediction"]) for each in told["predictions"]] == [
        str(each["label"]) for each in told["predictions"]
    ]
    assert (told["model"], told["version"]) == ("mnist", "1")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_several_inputs_of_several_types_and_text_travel(
    longboat: Longboat, server: Serving, tmp_path: Path, protocol: str
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"a": 1.5, "b": [1, 2, 3]}\n{"a": -1, "b": [0, 0, 9007199254740993]}\n')
    said = longboat("predict", address(server, protocol, "table"), rows, "--json", "--output", "twice")
    assert said.code == 0, said.err
    assert [each["outputs"]["twice"] for each in json.loads(said.out)["predictions"]] == [3.0, -2.0]
    text = tmp_path / "reviews.txt"
    text.write_text("a good one\nso bad, é 漢\n")
    said = longboat("predict", address(server, protocol, "words"), text)
    assert said.out.splitlines() == [
        "prediction  sure    example",
        "good        88.1 %  a good one",
        "bad         50.0 %  so bad, é 漢",
    ], said.err


def test_a_model_on_this_machine_is_asked_without_a_server(longboat: Longboat, models: Path, tmp_path: Path) -> None:
    said = longboat("predict", models / "words")
    assert said.code == 0, said.err
    assert "good        88.1 %  good ✓  a good one" in said.out
    assert "1 of 1 right" in said.err
    run = longboat.home / "runs" / "job-fadi" / "output" / "train"
    making.words(run / "words")
    assert "good ✓" in longboat("predict", "job").out
    assert longboat("predict", models / "words", "--model-version", "9").err.startswith("error: words has no version 9")
    assert "has several models" in longboat("predict", models).err
    broken = tmp_path / "mnist"
    making.digits(broken)
    weights = broken / "1" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x55")
    said = longboat("predict", broken)
    assert (said.code, "weights.safetensors" in said.err) == (2, True)


def test_a_server_of_ours_hands_out_its_examples_and_finds_its_own_protocol(
    longboat: Longboat, server: Serving, models: Path, tmp_path: Path
) -> None:
    assert "good ✓" in longboat("predict", f"127.0.0.1:{server.port}/words").out
    said = longboat("predict", f"127.0.0.1:{server.grpc_port}", "--model", "words", "--limit", "1")
    assert said.err.startswith("error: words was saved without examples"), "gRPC has none, and HTTP is not beside it"
    assert "which model" in longboat("predict", f"http://127.0.0.1:{server.port}").err
    assert "it has logarithm, mnist, table, words" in longboat("predict", f"http://127.0.0.1:{server.port}").err
    with serving(tmp_path, models / "words") as alone:
        assert "good ✓" in longboat("predict", f"http://127.0.0.1:{alone.port}").out, "one model needs no name"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_goes_wrong_is_said_with_what_to_do(longboat: Longboat, server: Serving, protocol: str) -> None:
    url = address(server, protocol, "nowhere")
    said = longboat("predict", url, "-")
    assert said.code == 1
    assert "nowhere" in said.err
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        said = longboat("predict", f"127.0.0.1:{port}", "-", "--protocol", protocol, "--model", "m")
    assert (said.code, f"127.0.0.1:{port} refused the connection" in said.err) == (1, True), said.err


def test_a_token_opens_the_server(longboat: Longboat, models: Path, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("open-sesame\n")
    with serving(tmp_path, models / "words", env={"LONGBOAT_SERVE_TOKEN": "open-sesame"}) as guarded:
        for protocol in PROTOCOLS:
            url = address(guarded, protocol, "words")
            text = tmp_path / "x.txt"
            text.write_text("good")
            said = longboat("predict", url, text)
            assert (said.code, "--token-file" in said.err) == (1, True), said.err
            assert longboat("predict", url, text, "--token-file", secret).code == 0
            assert longboat("predict", url, text, env={"LONGBOAT_SERVE_TOKEN": "open-sesame"}).code == 0


def test_a_certificate_is_checked(longboat: Longboat, models: Path, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost", "-out", str(cert), "-keyout", str(key)]
    subprocess.run([*make.split(), *names], check=True, capture_output=True)
    text = tmp_path / "x.txt"
    text.write_text("good")
    with serving(tmp_path, models / "words", "--tls-cert", cert, "--tls-key", key) as safe:
        for protocol in PROTOCOLS:
            url = address(safe, protocol, "words").replace("127.0.0.1", "localhost").replace("://", "s://")
            assert longboat("predict", url, text, "--ca", cert).out.splitlines()[1].startswith("good"), protocol
            assert longboat("predict", url, text, "--timeout", "5").code == 1, "nobody trusts it by itself"
        said = longboat("predict", f"https://localhost:{safe.port}/v1/models/words", text)
        assert "--ca FILE" in said.err


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_bench_counts_a_short_last_batch_exactly_and_says_that_it_wrapped(
    longboat: Longboat, server: Serving, tmp_path: Path, protocol: str
) -> None:
    data = noise(tmp_path / "eval.csv", 50, wrong=5)
    said = longboat(
        "bench", address(server, protocol, "mnist"), "-d", data, "-b", "16", "-n", "14", "-w", "4", "--json"
    )
    assert said.code == 0, said.err
    told = json.loads(said.out)
    # Batches of 16, 16, 16 and 2 rows, over and over; the first four iterations are the warm-up.
    sizes = [(16, 16, 16, 2)[number % 4] for number in range(14)]
    assert [each["rows"] for each in told["iterations"]] == sizes[4:]
    assert [each["number"] for each in told["iterations"]] == list(range(5, 15))
    right = [(11, 16, 16, 2)[number % 4] for number in range(14)]
    assert [each["correct"] for each in told["iterations"]] == right[4:]
    assert (told["examples"], told["labelled"], told["correct"]) == (sum(sizes[4:]), sum(sizes[4:]), sum(right[4:]))
    assert told["accuracy"] == pytest.approx(sum(right[4:]) / sum(sizes[4:]))
    assert (told["requests"], told["succeeded"], told["failures"]) == (10, 10, [])
    assert told["examples_per_second"] == pytest.approx(told["examples"] / told["seconds"])
    assert any("50 rows: they were repeated" in note for note in told["notes"])
    assert any("last batch of the data has 2 rows" in note for note in told["notes"])


def test_bench_prints_every_iteration_the_figures_and_a_histogram(
    longboat: Longboat, server: Serving, tmp_path: Path
) -> None:
    data, sheet = noise(tmp_path / "eval.csv", 40), tmp_path / "report.html"
    words: list[str | Path] = [
        "--server",
        f"127.0.0.1:{server.grpc_port}",
        "--data_file",
        data,
        "--model",
        "mnist",
        "--html",
        sheet,
    ]
    said = longboat("bench", *words)
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert len([line for line in lines if line.startswith("iteration ")]) == 30, "40 less 10 of warm-up, as by default"
    assert "accuracy 1.0000 (1 of 1)" in lines[0]
    assert "accuracy   1.0000  (30 of 30)" in lines
    assert any("p99.9" in line for line in lines)
    assert "█" in said.out
    page = sheet.read_text()
    assert page.count("<tr><td") >= 30
    assert "http://" not in page.replace("http://127.0.0.1", ""), "the page needs nothing from elsewhere"


def test_bench_holds_connections_and_time(longboat: Longboat, server: Serving, tmp_path: Path) -> None:
    data = noise(tmp_path / "eval.csv", 20)
    words = ("-d", data, "-w", "0", "--concurrency", "8", "--duration", "0.5s", "--json")
    told = json.loads(longboat("bench", address(server, "v2", "mnist"), *words).out)
    assert told["seconds"] >= 0.5
    assert (told["concurrency"], told["failures"]) == (8, [])
    assert told["requests"] == told["succeeded"] == len({each["number"] for each in told["iterations"]}) >= 8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-n", "10"), "all 10 iterations are warm-up"),
        (("-n", "5", "-w", "7"), "all 5 iterations are warm-up"),
        (("-b", "0"), "it must be at least 1"),
        (("-w", "-1"), "at least 0"),
        (("--rate", "-2"), "is not valid"),
        (("--rate", "nan"), "is not valid"),
        (("--duration", "soon"), "not a duration"),
        (("--timeout", "0"), "it must be greater than 0"),
        (("-s", "h:1"), "both a URL and --server were given"),
        (("-d", "absent.csv"), "file absent.csv does not exist"),
    ],
)
def test_bench_refuses_what_could_measure_nothing(
    longboat: Longboat, server: Serving, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    data = noise(tmp_path / "eval.csv", 2)
    said = longboat("bench", address(server, "rest", "mnist"), "-d", data, *words)
    assert (said.code, message in said.err) == (2, True), said.err


def test_the_data_is_required_and_zero_warm_up_is_fine(longboat: Longboat, server: Serving, tmp_path: Path) -> None:
    assert longboat("bench", "-s", "h:1").code == 2
    data = noise(tmp_path / "eval.csv", 1)
    said = longboat("bench", address(server, "rest", "mnist"), "-d", data, "-n", "1", "-w", "0", "--json")
    assert json.loads(said.out)["requests"] == 1


class Made(BaseHTTPRequestHandler):
    """A TensorFlow Serving of a dozen lines, which stalls or refuses as a test wishes."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Any

    def do_GET(self) -> None:
        one = {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": "-1"}]}, "name": "x:0"}
        signature = {"inputs": {"x": one}, "outputs": {"y": one}, "method_name": "tensorflow/serving/predict"}
        metadata = {"signature_def": {"signature_def": {"serving_default": signature}}}
        self.reply(200, {"model_spec": {"name": "m", "version": "1"}, "metadata": metadata})

    def do_POST(self) -> None:
        instances = json.loads(self.rfile.read(int(self.headers["content-length"])))["instances"]
        with self.server.turn:
            self.server.served += 1
            act = self.server.acts.get(self.server.served)
            if isinstance(act, float):
                time.sleep(act)  # while it holds its turn: every other request waits
        if act == "close":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif isinstance(act, int):
            self.reply(act, {"error": "no"})
        else:
            self.reply(200, {"predictions": instances})

    def reply(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def made(acts: dict[int, Any]) -> Iterator[str]:
    """The address of a server that does something special with some of its requests, by their number from 1."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Made)
    server.daemon_threads = True
    server.turn, server.served, server.acts = threading.Lock(), 0, acts
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/models/m"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ones(path: Path, count: int) -> str:
    path.write_text("label,x\n" + "1,1.0\n" * count)
    return str(path)


def test_a_stall_is_hidden_by_a_closed_loop_and_shown_by_an_open_one(tmp_path: Path) -> None:
    """The server stops once for a second. One request after the other, that is one slow request of 200, and the 99th
    percentile hides it. At 100 a second, the hundred that were due in that second waited, and are counted."""
    data = ones(tmp_path / "x.csv", 200)
    with made({100: 1.0}) as url:
        closed = load_test.run(target.parse(url), load_test.LoadSettings(data, num_iteration=200, warm_up_iteration=0))
    assert closed.latency is not None
    assert closed.latency.maximum >= 1.0
    assert closed.latency.p99 < 1.0
    with made({100: 1.0}) as url:
        wish = load_test.LoadSettings(data, num_iteration=200, warm_up_iteration=0, rate=100, concurrency=4)
        opened = load_test.run(target.parse(url), wish)
    assert opened.latency is not None
    assert opened.service is not None
    assert opened.latency.p99 >= 0.9
    late = sorted(each.seconds for each in opened.iterations if each.number > 100)
    assert len([each for each in late if each >= 0.25]) >= 70, "those that were due in the first three quarters waited"
    assert opened.latency.mean >= opened.service.mean
    # With four connections, four requests at most were on the wire while it stalled.
    assert len([each for each in opened.iterations if each.seconds >= 0.25]) > 4


def test_at_a_rate_requests_are_due_at_even_times_and_all_are_sent(tmp_path: Path) -> None:
    data = ones(tmp_path / "x.csv", 3)
    heard: list[Iteration] = []
    with made({}) as url:
        wish = load_test.LoadSettings(data, warm_up_iteration=2, rate=200, duration=0.5)
        found = load_test.run(target.parse(url), wish, heard.append)
    assert found.requests == 100, "200 a second for half a second"
    assert [each.number for each in found.iterations] == list(range(3, 103))
    assert sorted(heard, key=lambda each: each.number) == list(found.iterations)
    assert found.seconds >= 99 / 200, "the last was due then and not earlier"


def test_a_rate_that_no_server_keeps_up_with_ends_and_says_so(tmp_path: Path) -> None:
    data = ones(tmp_path / "x.csv", 3)
    with made({}) as url:
        wish = load_test.LoadSettings(data, warm_up_iteration=0, rate=1e8, duration=0.2, timeout=3.0, concurrency=2)
        found = load_test.run(target.parse(url), wish)
    assert found.requests == 20_000_000
    (failure,) = (each for each in found.failures if each.kind == "never sent")
    assert failure.count + found.succeeded + sum(f.count for f in found.failures if f is not failure) == found.requests
    assert found.succeeded > 0


def test_errors_are_counted_by_kind_and_the_rest_is_measured(longboat: Longboat, tmp_path: Path) -> None:
    data = ones(tmp_path / "x.csv", 10)
    with made({3: 429, 4: 429, 6: "close", 8: 6.0}) as url:
        said = longboat("bench", url, "-d", data, "-n", "10", "-w", "0", "--timeout", "5", "--json")
    assert said.code == 0, said.err
    told = json.loads(said.out)
    kinds = {each["kind"]: (each["count"], each["message"]) for each in told["failures"]}
    assert kinds["HTTP 429"] == (2, "no")
    assert kinds["connection closed"][0] == 1
    assert kinds["timeout"][0] >= 1
    assert told["succeeded"] == 10 - sum(count for count, _ in kinds.values())
    assert told["latency"]["maximum"] >= 5, "a request that ran out of time counts with the time it waited"
    with made(dict.fromkeys(range(1, 20), 500)) as url:
        said = longboat("bench", url, "-d", data, "-n", "4", "-w", "0")
    assert said.code == 1
    assert "HTTP 500: no" in said.out


def test_a_peer_that_speaks_nonsense_is_said_to(longboat: Longboat, tmp_path: Path) -> None:
    class Nonsense(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            self.request.sendall(b"220 mail.example ready\r\n\r\n")

    with socketserver.TCPServer(("127.0.0.1", 0), Nonsense) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}/v1/models/m"
        said = longboat("predict", url, "-")
        server.shutdown()
        thread.join()
    assert (said.code, "does not speak HTTP" in said.err) == (1, True), said.err


def test_answers_in_chunks_and_in_pieces_are_put_together() -> None:
    class Wire:
        def write(self, data: bytes) -> None:
            pass

        def abort(self) -> None:
            pass

    whole = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n3;x=y\r\nefg\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nabcdefg",
    )

    async def parse(answer: bytes, step: int) -> bytes:
        connection = ClientConnection()
        connection.connection_made(Wire())  # type: ignore[arg-type]
        waiter = connection.ask(b"")
        for at in range(0, len(answer), step):
            assert not waiter.done()
            connection.data_received(answer[at : at + step])
        await waiter
        return connection.body

    for answer in whole:
        for step in (1, 2, 3, 7, 1000):
            assert asyncio.run(parse(answer, step)) == b"abcdefg"


def asked(server: Serving) -> int:
    """Predictions of the MLP over REST that the server has counted."""
    found = re.search(rb'requests_total{model="mnist",protocol="rest",code="200"} (\d+)', server.get("/metrics").body)
    return int(found[1]) if found else 0


def test_ctrl_c_tells_the_figures_so_far(server: Serving, tmp_path: Path) -> None:
    data = noise(tmp_path / "eval.csv", 20)
    words = ["bench", address(server, "rest", "mnist"), "-d", str(data), "-w", "0", "--duration", "1m", "--json"]
    before = asked(server)
    with subprocess.Popen([sys.executable, "-m", "longboat", *words], stdout=subprocess.PIPE, text=True) as bench:
        server.until(lambda: asked(server) > before + 50)
        bench.send_signal(signal.SIGINT)
        out, _ = bench.communicate(timeout=PATIENCE)
    told = json.loads(out)
    assert bench.returncode == 130
    assert told["interrupted"] is True
    assert 0 < told["requests"] == told["succeeded"]
    assert told["seconds"] < 60


def test_bench_ends_quietly_if_the_reader_of_its_lines_goes_away(server: Serving, tmp_path: Path) -> None:
    data = noise(tmp_path / "rows.csv", 4)
    words = ["bench", address(server, "rest", "mnist"), "-d", str(data), "-n", "100"]
    bench = subprocess.Popen(
        [sys.executable, "-m", "longboat", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert bench.stdout is not None
    assert bench.stderr is not None
    assert bench.stdout.readline().startswith("iteration")
    bench.stdout.close()
    with bench.stderr:
        assert "itself failed" not in bench.stderr.read()
    assert bench.wait(PATIENCE) == 0


def test_a_load_test_that_never_reaches_a_server_is_an_error(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}/v1/models/m"
        with pytest.raises(LongboatError, match="refused the connection"):
            load_test.run(target.parse(url), load_test.LoadSettings(ones(tmp_path / "x.csv", 1)))
