"""Days on which all goes wrong at once: floods, clients that leave, no memory."""

from __future__ import annotations

import concurrent.futures
import re
import socket
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from longboat.serve.protos import tfs_pb2 as tfs
from tests.serve import making
from tests.serve.serving import Serving, serving
from tests.serve.test_grpc import TFS

WIDTH = 1200
BODY = b'{"instances":[' + b",".join([b"[" + b",".join([b"0.5"] * WIDTH) + b"]"] * 4) + b"]}"
"""Four rows: a batch of them takes a while."""


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("heavy") / "heavy"
    making.heavy(directory, width=WIDTH, layers=6)
    return directory


def count(server: Serving, code: int) -> int:
    text = server.get("/metrics").body.decode()
    found = re.search(rf'longboat_requests_total{{model="heavy",protocol="rest",code="{code}"}} (\d+)', text)
    return int(found[1]) if found else 0


def rows_computed(server: Serving) -> int:
    found = re.search(r'longboat_rows_total{model="heavy",version="1"} (\d+)', server.get("/metrics").body.decode())
    return int(found[1]) if found else 0


def test_a_flood_is_answered_or_refused_and_never_lost(heavy: Path, tmp_path: Path) -> None:
    with serving(tmp_path, heavy, "--queue", "8", "--max-batch", "4") as server:
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            answers = list(pool.map(lambda _: server.post("/v1/models/heavy:predict", BODY), range(120)))
        told = Counter(answer.status for answer in answers)
        assert set(told) == {200, 429}
        busy = next(answer for answer in answers if answer.status == 429)
        assert "the queue of model 'heavy' is full" in busy.error
        assert busy.headers["retry-after"] == "1"

        request = tfs.PredictRequest()
        request.model_spec.name = "heavy"
        request.inputs["x"].dtype = 1
        for length in (4, WIDTH):
            request.inputs["x"].tensor_shape.dim.add(size=length)
        request.inputs["x"].tensor_content = np.full((4, WIDTH), 0.5, np.float32).tobytes()
        content = request.SerializeToString()

        def call(_: int) -> Any:
            with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
                try:
                    channel.unary_unary(TFS + "Predict")(content, timeout=60)
                except grpc.RpcError as error:
                    return error.code()
                return grpc.StatusCode.OK

        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            codes = set(pool.map(call, range(120)))
        assert codes == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}


def test_what_nobody_waits_for_is_not_computed(tmp_path: Path) -> None:
    making.heavy(tmp_path / "heavy", width=WIDTH, layers=6, times=30)  # all have left before it has done one or two
    with serving(tmp_path, tmp_path / "heavy", "--no-grpc", "--max-batch", "4") as server:
        request = b"POST /v1/models/heavy:predict HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
        links = []
        for _ in range(12):
            link = socket.create_connection(("127.0.0.1", server.port))
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            link.sendall(request)
            links.append(link)
        for link in links:
            link.close()
        server.until(lambda: count(server, 499) + count(server, 200) == 12)
        assert count(server, 499) > 0
        server.until(lambda: 'longboat_queue_rows{model="heavy",version="1"} 0' in server.get("/metrics").body.decode())
        assert rows_computed(server) < 4 * 12
        assert server.post("/v1/models/heavy:predict", BODY).status == 200


def test_a_deadline_is_kept(heavy: Path, tmp_path: Path) -> None:
    with serving(tmp_path, heavy, "--no-grpc", "--max-batch", "4") as server:
        hasty = {"X-Request-Timeout-Ms": "0.001"}
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            patient = [pool.submit(server.post, "/v1/models/heavy:predict", BODY) for _ in range(4)]
            answers = [pool.submit(server.post, "/v1/models/heavy:predict", BODY, hasty) for _ in range(4)]
            assert {call.result().status for call in patient} == {200}
            told = {call.result().status for call in answers}
        assert 504 in told
        assert told <= {200, 504}


def test_a_batch_without_memory_fails_only_for_who_asked_too_much(tmp_path: Path) -> None:
    making.greedy(tmp_path / "greedy")
    with serving(tmp_path, tmp_path / "greedy", "--no-grpc") as server:

        def ask(n: int) -> tuple[int, bytes]:
            answer = server.post("/v1/models/greedy:predict", {"instances": [n]})
            return answer.status, answer.body

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, [3, 10**14] * 20))
        words = b"model 'greedy' ran out of memory on this batch: send fewer rows at a time"
        assert answers == [(200, b'{"predictions":[3.0]}'), (503, b'{"error":"%b"}' % words)] * 20
        assert server.get("/readyz").status == 200
