"""`longboat bench` asks servers of others: TensorFlow Serving's messages as its own package has them, and MLServer,
which speaks the Open Inference Protocol without binary tensors."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.places import environment_of
from tests.commands import Longboat
from tests.ports import free_port

RUNTIME = """
import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse

class Sum(MLModel):
    async def load(self):
        return True

    async def predict(self, payload):
        sums = NumpyCodec.decode_input(payload.inputs[0]).sum(axis=1) - 1.5
        scores = NumpyCodec.encode_output("scores", np.stack([-sums, sums], 1))
        return InferenceResponse(model_name=self.name, outputs=[scores])
"""


@contextlib.contextmanager
def running(command: list[str], place: Path) -> Iterator[subprocess.Popen[str]]:
    env = {**os.environ, "PYTHONPATH": str(place)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=place, env=env
    ) as it:
        try:
            yield it
        finally:
            it.kill()


def sums(path: Path) -> Path:
    chance = random.Random(1)
    rows = [[chance.random() for _ in range(3)] for _ in range(100)]
    path.write_text("".join(f"{int(sum(row) > 1.5)},{','.join(map(repr, row))}\n" for row in rows))
    return path


def test_the_official_messages_of_tensorflow_serving(longboat: Longboat, tmp_path: Path) -> None:
    command = [str(environment_of("serving-clients") / "python"), str(Path(__file__).with_name("official_server.py"))]
    with running(command, tmp_path) as server:
        assert server.stdout is not None
        address = f"127.0.0.1:{int(server.stdout.readline())}"
        said = longboat("bench", "-s", address, "--model", "sum", "-d", sums(tmp_path / "x.csv"), "-b", "33", "--json")
        assert said.code == 0, said.err
        told = json.loads(said.out)
        assert (told["protocol"], told["version"], told["accuracy"], told["failures"]) == ("grpc", "7", 1.0, [])
        data = tmp_path / "eval.csv"
        figures, hashes = ",".join("1" * 13), ",".join(["ab12cd34"] * 25)
        data.write_text(
            "".join(f"{i % 2},{figures},{'12e45678' if i % 2 else '0badcafe'},{hashes}\n" for i in range(60))
        )
        said = longboat("bench", "-s", address, "--model", "clicks", "-d", data, "-b", "7", "--json")
        assert said.code == 0, said.err
        told = json.loads(said.out)
        assert (told["accuracy"], told["failures"]) == (1.0, [])


def test_mlserver_is_asked_over_the_open_inference_protocol(longboat: Longboat, tmp_path: Path) -> None:
    http, grpc, metrics = free_port(), free_port(), free_port()
    ends = {"datatype": "FP64", "shape": [-1, 3]}
    model = {"name": "sum", "implementation": "runtime.Sum", "inputs": [{"name": "x", **ends}]}
    model["outputs"] = [{"name": "scores", "datatype": "FP64", "shape": [-1, 2]}]
    ports = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics}
    (tmp_path / "runtime.py").write_text(RUNTIME)
    (tmp_path / "model-settings.json").write_text(json.dumps(model))
    (tmp_path / "settings.json").write_text(json.dumps({**ports, "host": "127.0.0.1", "parallel_workers": 0}))
    with running([str(environment_of("mlserver") / "mlserver"), "start", "."], tmp_path):
        wait_for(f"http://127.0.0.1:{http}/v2/models/sum/ready")
        said = longboat(
            "bench", f"127.0.0.1:{http}", "--protocol", "v2", "-d", sums(tmp_path / "x.csv"), "-b", "33", "--json"
        )
    assert said.code == 0, said.err
    told = json.loads(said.out)
    assert (told["model"], told["accuracy"], told["failures"]) == ("sum", 1.0, [])


def wait_for(url: str) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        with contextlib.suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.1)
    pytest.fail(f"{url} does not answer")
