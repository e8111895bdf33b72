"""How fast a model is served, beside other servers of the same model on the same machine.

Every contender is a process that stays up, asleep, between the turns. One load generator (programs/serving_load.py,
for gRPC programs/grpc_load.py) asks all of them, with the same rows over the same number of connections; servers and
generator share the machine, as they do for whoever repeats this.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from bench.harness import Bench, Contender, NotMeasured, Series, Target
from bench.places import LONGBOAT, PROGRAMS, PYTHON, environment_of

CONNECTIONS = 16
SECONDS = 3.0
BOUND = 20
"""Milliseconds: the bound that the batching bench asks for."""
HERE = PROGRAMS / "serving"

OWN, BINARY, FASTAPI = "longboat serve", "longboat serve, v2 binary", "FastAPI + pydantic on uvicorn"
LITSERVE, MLSERVER = "LitServe", "MLServer"
GRPC, EMPTY = "longboat serve, gRPC", "an empty grpc.aio handler (the floor)"
PEERS = (FASTAPI, LITSERVE, MLSERVER)


@dataclass
class Place:
    """A directory with the model and the requests, for as long as the bench runs."""

    path: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="longboat-bench-")))

    def __post_init__(self) -> None:
        atexit.register(shutil.rmtree, self.path, ignore_errors=True)

    @cached_property
    def model(self) -> Path:
        """The MLP as a bundle, and a slow one for the batching bench."""
        from tests.serve import making

        making.digits(self.path / "mnist")
        making.heavy(self.path / "wide", width=1024, layers=4)
        return self.path / "mnist"

    @cached_property
    def row(self) -> list[float]:
        """784 numbers of three digits, four fifths of them zero, as pixels are."""
        import numpy as np

        chance = np.random.default_rng(1)
        row = chance.random(784).round(3)
        row[chance.random(784) < 0.8] = 0
        found: list[float] = row.tolist()
        return found

    def request(self, name: str, path: str, body: bytes, headers: str = "") -> Path:
        """A file with a whole HTTP request."""
        head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n{headers}"
        file = self.path / f"{name}.request"
        file.write_bytes(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return file

    @cached_property
    def rows(self) -> Path:
        return self.request("rows", "/v1/models/mnist:predict", json.dumps({"instances": [self.row]}).encode())

    @cached_property
    def v2(self) -> Path:
        tensor = {"name": "x", "shape": [1, 784], "datatype": "FP32", "data": self.row}
        return self.request("v2", "/v2/models/mnist/infer", json.dumps({"inputs": [tensor]}).encode())

    @cached_property
    def binary(self) -> Path:
        import numpy as np

        content = np.array(self.row, np.float32).tobytes()
        tensor = {"name": "x", "shape": [1, 784], "datatype": "FP32", "parameters": {"binary_data_size": len(content)}}
        wanted = {"name": "probabilities", "parameters": {"binary_data": True}}
        head = json.dumps({"inputs": [tensor], "outputs": [wanted]}).encode()
        length = f"Inference-Header-Content-Length: {len(head)}\r\n"
        return self.request("binary", "/v2/models/mnist/infer", head + content, length)

    @cached_property
    def wide(self) -> Path:
        body = json.dumps({"instances": [[0.5] * 1024]}).encode()
        return self.request("wide", "/v1/models/wide:predict", body)

    @cached_property
    def message(self) -> Path:
        """A serialised PredictRequest."""
        import numpy as np

        from longboat.serve.protos import tfs_pb2 as tfs

        request = tfs.PredictRequest()
        request.model_spec.name = "mnist"
        tensor = request.inputs["x"]
        tensor.dtype = 1
        for length in (1, 784):
            tensor.tensor_shape.dim.add(size=length)
        tensor.tensor_content = np.array(self.row, np.float32).tobytes()
        file = self.path / "message"
        file.write_bytes(request.SerializeToString())
        return file


@dataclass
class Served:
    """A server's process, started when it is first asked and ended with the bench."""

    name: str
    command: Callable[[Place, int], Sequence[str]]
    place: Place
    request: Callable[[Place], Path]
    environment: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    started: float = 0.0
    """Seconds from the start of the process to its first right answer."""
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def up(self) -> Served:
        if self.process is None:
            self.port = _free_port()
            env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
            env |= {"MODEL": str(self.place.model / "1/function.onnx"), "OMP_NUM_THREADS": "1", **self.environment}
            log = open(self.place.path / f"{self.port}.log", "wb")
            command = self.command(self.place, self.port)
            began = time.perf_counter()
            self.process = subprocess.Popen(
                command, env=env, cwd=self.cwd, stdout=log, stderr=log, start_new_session=True
            )
            atexit.register(self.down)
            self._wait(began, Path(log.name))
        return self

    def _wait(self, began: float, log: Path) -> None:
        assert self.process is not None
        content = self.request(self.place).read_bytes()
        while True:
            if self.process.poll() is not None or time.perf_counter() - began > 90:
                self.down()
                raise NotMeasured(f"it did not start: {log.read_text()[-300:]}")
            if b" 200 " in _ask(self.port, content):
                self.started = time.perf_counter() - began
                return
            time.sleep(0.01)

    def down(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def load(self, rate: float = 0.0, connections: int = CONNECTIONS) -> dict[str, Any]:
        """What the load generator measured."""
        self.up()
        words = [str(self.port), str(self.request(self.place)), str(connections), str(SECONDS)]
        told = _run([PYTHON, str(PROGRAMS / "serving_load.py"), "127.0.0.1", *words, *([str(rate)] if rate else [])])
        if "error" in told:
            raise SystemExit(f"{self.name} answered: {told['error']}")
        return told

    def memory(self) -> float:
        """MiB of all its processes."""
        assert self.process is not None
        total = 0
        for entry in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                if int(entry.read_text().rpartition(")")[2].split()[3]) == self.process.pid:
                    found = re.search(r"VmRSS:\s*(\d+)", (entry.parent / "status").read_text())
                    total += int(found[1]) if found else 0
        return total / 1024


def _run(command: Sequence[str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _first(kept: dict[str, list[float]], name: str) -> float:
    """What another bench measured in the same turn."""
    return kept[name].pop(0)


def _median(name: str, series: Mapping[str, Series]) -> float:
    return series[name].median


def _free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port: int = trial.getsockname()[1]
        return port


def _ask(port: int, content: bytes) -> bytes:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as link:
            link.sendall(content)
            return link.recv(4096)
    except OSError:
        return b""


def _longboat(place: Place, port: int, *words: str) -> Sequence[str]:
    return (LONGBOAT, "serve", str(place.model), "--port", str(port), "--no-grpc", *words)


def _mlserver(place: Place, port: int) -> Sequence[str]:
    directory = place.path / "mlserver"
    directory.mkdir(exist_ok=True)
    settings = {"http_port": port, "grpc_port": _free_port(), "metrics_port": _free_port(), "host": "127.0.0.1"}
    # Its worker processes do not start with today's uvloop; without them it is one process, as its guide allows.
    (directory / "settings.json").write_text(json.dumps({**settings, "debug": False, "parallel_workers": 0}))
    told = {"name": "mnist", "implementation": "mlserver_runtime.Digits"}
    (directory / "model-settings.json").write_text(json.dumps(told))
    return (str(environment_of("mlserver") / "mlserver"), "start", str(directory))


def _fastapi(_: Place, port: int) -> Sequence[str]:
    quiet = ("--log-level", "warning", "--no-access-log")
    return (str(environment_of("serving") / "uvicorn"), "fastapi_app:app", "--port", str(port), *quiet)


def _litserve(_: Place, port: int) -> Sequence[str]:
    return (str(environment_of("serving") / "python"), str(HERE / "litserve_app.py"), str(port))


class Field:
    """All servers, shared by the benches of this module."""

    def __init__(self) -> None:
        self.place = Place()
        found = {"PYTHONPATH": str(HERE)}
        self.servers = {
            OWN: Served(OWN, _longboat, self.place, lambda p: p.rows),
            BINARY: Served(BINARY, _longboat, self.place, lambda p: p.binary),
            FASTAPI: Served(FASTAPI, _fastapi, self.place, lambda p: p.rows, cwd=HERE),
            LITSERVE: Served(LITSERVE, _litserve, self.place, lambda p: p.rows),
            MLSERVER: Served(MLSERVER, _mlserver, self.place, lambda p: p.v2, found),
        }
        self.rates: dict[str, list[float]] = {}

    def microseconds(self, name: str) -> float:
        """Of the wall clock for one request at full load."""
        rate = float(self.servers[name].load()["rate"])
        self.rates.setdefault(name, []).append(rate)
        return 1e6 / rate

    def peak(self, name: str) -> float:
        """The best rate of a peer so far; measured if it was not."""
        if name not in self.rates:
            self.microseconds(name)
        return max(self.rates[name])


def rates(field: Field) -> Bench:
    def best(series: Mapping[str, Series]) -> float:
        return min(series[name].median for name in PEERS if name in series)

    return Bench(
        "serving",
        f"An MLP of 784-100-10, one row a request, {CONNECTIONS} connections, {SECONDS:g} s a turn: wall time for one "
        "request (1,000,000 / it is requests/s). One process each.",
        "us",
        tuple(Contender(name, partial(field.microseconds, name)) for name in (OWN, BINARY, *PEERS)),
        (
            Target("JSON: at least 4x the requests/s of the best peer", OWN, lambda s: best(s) / 4),
            Target("v2 binary: at least 5x FastAPI + pydantic's JSON", BINARY, lambda s: s[FASTAPI].median / 5),
        ),
    )


def latency(field: Field) -> Bench:
    """p99 at each peer's own peak: both are offered nine tenths of the rate that the peer could bear."""

    def at(name: str, peer: str) -> float:
        return float(field.servers[name].load(rate=0.9 * field.peak(peer))["p99"])

    contenders = [
        Contender(f"{name} at 0.9 of {peer}'s peak", partial(at, name, peer)) for peer in PEERS for name in (peer, OWN)
    ]
    return Bench(
        "serving-latency",
        "The 99th percentile of latency, counted from when a request was due (open loop), at nine tenths of a peer's "
        "own highest rate.",
        "ms",
        contenders,
        tuple(
            Target(
                f"no worse than {peer}",
                f"{OWN} at 0.9 of {peer}'s peak",
                partial(_median, f"{peer} at 0.9 of {peer}'s peak"),
            )
            for peer in PEERS
        ),
    )


def grpc(place: Place) -> Bench:
    def own(place: Place, port: int) -> Sequence[str]:
        return (LONGBOAT, "serve", str(place.model), "--port", str(port), "--grpc-port", str(port + 1))

    def empty(_: Place, port: int) -> Sequence[str]:
        return (PYTHON, str(HERE / "grpc_empty.py"), str(port))

    served = Served(GRPC, own, place, lambda p: p.rows)
    floor: list[subprocess.Popen[str]] = []
    ports: list[int] = []

    def call(port: int) -> float:
        words = [f"127.0.0.1:{port}", str(place.message), str(CONNECTIONS), str(SECONDS)]
        return 1e6 / float(_run([PYTHON, str(PROGRAMS / "grpc_load.py"), *words])["rate"])

    def once_empty() -> float:
        if not floor:
            ports.append(_free_port())
            process = subprocess.Popen(empty(place, ports[0]), stdout=subprocess.PIPE, text=True)
            atexit.register(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
            floor.append(process)
        return call(ports[0])

    return Bench(
        "serving-grpc",
        f"PredictionService.Predict of the same row, {CONNECTIONS} calls at once on one channel: wall time for one "
        "call. The floor decodes and encodes the same messages and computes nothing.",
        "us",
        (Contender(EMPTY, once_empty), Contender(GRPC, lambda: call(served.up().port + 1))),
        (Target("at least 0.9x the floor's calls/s", GRPC, lambda s: s[EMPTY].median / 0.9),),
    )


def batching(place: Place) -> Sequence[Bench]:
    """A model of four matrices of 1024 x 1024, asked by 32 connections, with batches and without."""

    def command(*words: str) -> Callable[[Place, int], Sequence[str]]:
        def made(place: Place, port: int) -> Sequence[str]:
            directory = str(place.model.with_name("wide"))
            return (LONGBOAT, "serve", directory, "--port", str(port), "--no-grpc", "--threads", "1", *words)

        return made

    alone, together, bound = "one row at a time (--max-batch 1)", "batches (the default)", f"batches, --latency {BOUND}"
    servers = {
        alone: Served(alone, command("--max-batch", "1"), place, lambda p: p.wide),
        together: Served(together, command(), place, lambda p: p.wide),
        bound: Served(bound, command("--latency", str(BOUND)), place, lambda p: p.wide),
    }
    seen: dict[str, list[float]] = {}

    def once(name: str) -> float:
        told = servers[name].load(connections=32)
        seen.setdefault(name, []).append(float(told["p99"]))
        return 1e6 / float(told["rate"])

    throughput = Bench(
        "serving-batching",
        "Four matrices of 1024 x 1024, one row a request, 32 connections, one thread: wall time for one example.",
        "us",
        tuple(Contender(name, partial(once, name)) for name in servers),
        (Target("batches raise examples/s", together, lambda s: s[alone].median),),
    )
    tail = Bench(
        "serving-batching-p99",
        "The 99th percentile of latency in the same turns.",
        "ms",
        tuple(Contender(name, partial(_first, seen, name)) for name in servers),
        (Target(f"the p99 stays within the bound of {BOUND} ms", bound, lambda _: float(BOUND)),),
    )
    return (throughput, tail)


def start(field: Field) -> Sequence[Bench]:
    """Each server started anew: how long until it answers, how much memory it then has."""
    memory: dict[str, list[float]] = {}
    names = (OWN, *PEERS)

    def once(name: str) -> float:
        known = field.servers[name]
        fresh = Served(name, known.command, field.place, known.request, known.environment, known.cwd)
        fresh.up()
        fresh.load()
        memory.setdefault(name, []).append(fresh.memory())
        fresh.down()
        return fresh.started

    ready = Bench(
        "serving-start",
        "From the start of the process to its first right answer.",
        "s",
        tuple(Contender(name, partial(once, name)) for name in names),
        (Target("aim 1.5 s", OWN, lambda _: 1.5, aim=True),),
    )
    resident = Bench(
        "serving-memory",
        "Memory (RSS) of all of a server's processes after the load of one turn.",
        "MiB",
        tuple(Contender(name, partial(_first, memory, name)) for name in names),
        (),
    )
    return (ready, resident)


def everything() -> dict[str, Callable[[], Sequence[Bench]]]:
    def all_of_it() -> Sequence[Bench]:
        field = Field()
        return (rates(field), latency(field), grpc(field.place), *batching(field.place), *start(field))

    return {"serving": all_of_it}
