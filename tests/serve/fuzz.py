"""Sends broken requests to a real server, protocol by protocol: no answer may be a 5xx, none may be missing.

python -m tests.serve.fuzz [--cases 100000] [--seed 0] [http tfs v2 binary grpc grpc-v2]

Cases are valid requests, changed: other values in the JSON, other bytes in the message, cut, doubled, joined. A case
is made from the seed and its number alone, so that a finding can be played again. After each protocol the server must
still give the right answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.serve import making
from tests.serve.serving import Serving, serving

AT_ONCE = 32
PATIENCE = 30.0
"""Seconds: an answer that takes longer is a hang."""
ROW = np.linspace(0, 1, 784, dtype=np.float32)
NASTY: list[Any] = [
    None, True, False, 0, -1, 1, 784, 1.5, -0.0, 1e308, 1e-320, 10**18, 10**25, -(10**25), 2**31, 2**63, 2**64, "", "x",
    "1", "\0", "ä" * 50, "\ud800", "NaN", [], [[]], [[[]]], [None], [1, [2]], {}, {"b64": ""}, {"b64": "////"},
    {"b64": 1}, {"name": "x"}, [0] * 784, [[0] * 784], float("nan"), float("inf"), "serving_default", "FP32", "BYTES",
    [1, 784], [0, 784], [2**40], [-1, 784], [1] * 70,
]  # fmt: skip


class Finding(Exception):
    """An answer that must not be."""


def changed(value: Any, chance: random.Random, depth: int = 0) -> Any:
    """The JSON value with something in it replaced, removed, doubled or renamed."""
    if depth > 5 or chance.random() < 0.25 or not isinstance(value, (dict, list)) or not value:
        return chance.choice(NASTY)
    if isinstance(value, list):
        found = list(value)
        at = chance.randrange(len(found))
        match chance.randrange(5):
            case 0:
                del found[at]
            case 1:
                found.insert(at, found[at])
            case 2:
                found = found[:at]
            case _:
                found[at] = changed(found[at], chance, depth + 1)
        return found
    told = dict(value)
    key = chance.choice(list(told))
    match chance.randrange(6):
        case 0:
            del told[key]
        case 1:
            told[chance.choice(["x", "name", "inputs", "instances", "", "é"])] = told.pop(key)
        case 2:
            told[chance.choice(["id", "parameters", "outputs", "signature_name", "shape"])] = chance.choice(NASTY)
        case _:
            told[key] = changed(told[key], chance, depth + 1)
    return told


def garbled(content: bytes, chance: random.Random) -> bytes:
    """The bytes with a few of them flipped, cut out, doubled or replaced by others that mean something."""
    found = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        at = chance.randrange(len(found) + 1)
        match chance.randrange(6):
            case 0 if at < len(found):
                found[at] ^= 1 << chance.randrange(8)
            case 1:
                del found[at : at + chance.choice((1, 2, 8, 100))]
            case 2:
                found[at:at] = found[at : at + chance.choice((1, 4, 50))]
            case 3:
                found[at:at] = chance.choice(
                    (
                        b"\0",
                        b"\xff",
                        b"[" * 3000,
                        b"{",
                        b'"',
                        b"\r\n",
                        b"\r\n\r\n",
                        b"-",
                        b"1e999",
                        b"\x80" * 10,
                        b"\xff" * 4,
                    )
                )
            case 4:
                del found[at:]
            case _ if at < len(found):
                found[at] = chance.randrange(256)
    return bytes(found)


def body(seed: dict[str, Any], chance: random.Random) -> bytes:
    told = seed
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        told = changed(told, chance)
        if not isinstance(told, dict):
            break
    try:
        content = json.dumps(told).encode()
    except ValueError:
        content = b"{}"
    return garbled(content, chance) if chance.random() < 0.3 else content


TFS_SEEDS: list[tuple[str, dict[str, Any]]] = [
    ("mnist:predict", {"instances": [ROW.round(2).tolist()], "signature_name": "serving_default"}),
    ("mnist:predict", {"inputs": {"x": [[0.5] * 784] * 2}}),
    ("table:predict", {"instances": [{"a": 1, "b": [1, 2, 3]}, {"a": 2, "b": [1, 2, 3]}]}),
    ("table:predict", {"inputs": {"a": [1, 2], "b": [[1, 2, 3], [4, 5, 6]]}}),
    ("words:predict", {"instances": ["good", {"b64": "YmFk"}]}),
    ("words:explain", {"instances": [{"text": "good"}]}),
    ("logarithm:predict", {"instances": [[1, 2]]}),
    ("mnist:classify", {"examples": [{"x": [0.5] * 784}], "context": {}}),
    ("table:regress", {"context": {"b": [1, 2, 3]}, "examples": [{"a": 1}]}),
]
V2_SEEDS: list[tuple[str, dict[str, Any]]] = [
    ("mnist", {"id": "1", "inputs": [{"name": "x", "shape": [1, 784], "datatype": "FP32", "data": [0.5] * 784}]}),
    (
        "table",
        {
            "inputs": [
                {"name": "a", "shape": [1], "datatype": "FP32", "data": [1]},
                {"name": "b", "shape": [1, 3], "datatype": "INT64", "data": [[1, 2, 3]]},
            ],
            "outputs": [{"name": "total", "parameters": {"binary_data": False}}],
        },
    ),
    ("words", {"inputs": [{"name": "text", "shape": [2], "datatype": "BYTES", "data": ["good", "bad"]}]}),
]


def tfs_case(chance: random.Random) -> bytes:
    path, seed = chance.choice(TFS_SEEDS)
    return post(f"/v1/models/{path}".encode(), body(seed, chance))


def v2_case(chance: random.Random) -> bytes:
    model, seed = chance.choice(V2_SEEDS)
    return post(f"/v2/models/{model}/infer".encode(), body(seed, chance))


def binary_case(chance: random.Random) -> bytes:
    size = ROW.nbytes
    tensor = {"name": "x", "shape": [1, 784], "datatype": "FP32", "parameters": {"binary_data_size": size}}
    model, told, tail = "mnist", {"inputs": [tensor], "parameters": {"binary_data_output": True}}, ROW.tobytes()
    if chance.random() < 0.4:
        tail = b"\4\0\0\0good\3\0\0\0bad"
        text = {"name": "text", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": len(tail)}}
        model, told = "words", {"inputs": [text]}
    head = body(told, chance) if chance.random() < 0.7 else json.dumps(told).encode()
    if chance.random() < 0.5:
        tail = garbled(tail, chance)
    length = len(head) if chance.random() < 0.8 else chance.choice((0, 1, len(head) + 3, -5, 10**9))
    return post(f"/v2/models/{model}/infer".encode(), head + tail, b"Inference-Header-Content-Length: %d\r\n" % length)


def post(path: bytes, content: bytes, headers: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: h\r\n%bContent-Length: %d\r\n\r\n%b" % (path, headers, len(content), content)


HTTP_SEEDS = [
    post(b"/v1/models/table:predict", b'{"instances":[{"a":1,"b":[1,2,3]}]}'),
    b"GET /v1/models/mnist/metadata HTTP/1.1\r\nHost: h\r\nAccept: */*\r\nConnection: keep-alive\r\n\r\n" * 2,
    (
        b"POST /v1/models/logarithm:predict HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        b'11\r\n{"instances":[[1,\r\n4\r\n2]]}\r\n0\r\n\r\n'
    ),
    b"GET /v2/models/mnist/versions/1/ready HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    b"HEAD /metrics HTTP/1.1\r\nExpect: 100-continue\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
]


def http_case(chance: random.Random) -> bytes:
    return garbled(chance.choice(HTTP_SEEDS), chance)


def grpc_case(chance: random.Random) -> tuple[str, bytes]:
    from longboat.serve.protos import tfs_pb2 as tfs

    service = "/tensorflow.serving.PredictionService/"
    request: Any = tfs.PredictRequest()
    method = "Predict"
    match chance.randrange(5):
        case 0 | 1:
            request.model_spec.name = "mnist"
            tensor = request.inputs["x"]
            tensor.dtype = chance.choice((1, 1, 1, 2, 7, 19, 99))
            for length in chance.choice(((1, 784), (1, 784), (0, 784), (2**40, 784), (-1, 784), (3,))):
                tensor.tensor_shape.dim.add(size=length)
            tensor.tensor_content = ROW.tobytes()
        case 2:
            request.model_spec.name = "words"
            request.inputs["text"].dtype = 7
            request.inputs["text"].tensor_shape.dim.add(size=2)
            request.inputs["text"].string_val.extend([b"good", bytes([chance.randrange(256)])])
        case 3:
            method = chance.choice(("Classify", "Regress"))
            request = tfs.ExamplesRequest()
            request.model_spec.name = "table"
            features = request.input.example_list.examples.add().features.feature
            features["a"].float_list.value.append(1)
            features["b"].int64_list.value.extend([1, 2, 3])
        case _:
            method = "GetModelMetadata"
            request = tfs.GetModelMetadataRequest(metadata_field=["signature_def"])
            request.model_spec.name = "mnist"
    return service + method, garbled(request.SerializeToString(), chance)


def grpc_v2_case(chance: random.Random) -> tuple[str, bytes]:
    from longboat.serve.protos import oip_pb2 as oip

    request = oip.ModelInferRequest(model_name=chance.choice(("mnist", "words", "table")))
    if request.model_name == "words":
        request.inputs.add(name="text", datatype="BYTES", shape=[2])
        request.raw_input_contents.append(b"\4\0\0\0good\3\0\0\0bad")
    elif request.model_name == "mnist":
        request.inputs.add(name="x", datatype="FP32", shape=[1, chance.choice((784, 784, 784, 0, -1, 2**62))])
        request.raw_input_contents.append(ROW.tobytes())
    else:
        one = request.inputs.add(name="a", datatype="FP32", shape=[1])
        one.contents.fp32_contents.append(1)
        two = request.inputs.add(name="b", datatype="INT64", shape=[1, 3])
        two.contents.int64_contents.extend([1, 2, 3])
    return "/inference.GRPCInferenceService/ModelInfer", garbled(request.SerializeToString(), chance)


async def over_http(server: Serving, case: bytes) -> str:
    """Sends a case on a connection of its own, says that no more comes, and reads what is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(case)
        writer.write_eof()
        found = await reader.read(-1)
    except ConnectionError:
        return "reset"
    finally:
        writer.close()
    codes = re.findall(rb"HTTP/1\.1 (\d{3}) ", found)
    for code in codes:
        if code.startswith(b"5"):
            raise Finding(found.decode("latin-1")[:2000])
    return codes[0].decode() if codes else "nothing"


async def over_one_link(server: Serving, link: dict[int, Any], slot: int, case: bytes) -> str:
    """Sends a well-formed HTTP request on a kept connection: an answer there must be."""
    if slot not in link:
        link[slot] = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 24)
    reader, writer = link[slot]
    writer.write(case)
    head = await reader.readuntil(b"\r\n\r\n")
    size = re.search(rb"\r\nContent-Length: (\d+)", head)
    content = await reader.readexactly(int(size[1])) if size else b""
    code = str(head[9:12], "latin-1")
    if code.startswith("5"):
        raise Finding((head + content).decode("latin-1")[:2000])
    if code != "200" and not json.loads(content).get("error"):
        raise Finding(f"an error without words: {content!r}")
    if b"Connection: close" in head:
        writer.close()
        del link[slot]
    return code


async def over_grpc(channel: Any, case: tuple[str, bytes]) -> str:
    import grpc

    try:
        await channel.unary_unary(case[0])(case[1], timeout=PATIENCE)
    except grpc.aio.AioRpcError as error:
        if error.code().name in ("INTERNAL", "UNKNOWN", "UNAVAILABLE", "DEADLINE_EXCEEDED", "DATA_LOSS"):
            raise Finding(f"{error.code()}: {error.details()}") from None
        return str(error.code().name)
    return "OK"


MAKERS: dict[str, Callable[[random.Random], Any]] = {
    "http": http_case,
    "tfs": tfs_case,
    "v2": v2_case,
    "binary": binary_case,
    "grpc": grpc_case,
    "grpc-v2": grpc_v2_case,
}


async def fuzz(server: Serving, protocol: str, cases: int, seed: int) -> Counter[str]:
    """Plays the cases; what was answered, counted. Raises Finding."""
    import grpc.aio

    told: Counter[str] = Counter()
    links: dict[int, Any] = {}
    numbers = iter(range(cases))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:

        async def player(slot: int) -> None:
            for number in numbers:
                case = MAKERS[protocol](random.Random(f"{seed} {protocol} {number}"))
                asked: Awaitable[str]
                if protocol == "http":
                    asked = over_http(server, case)
                elif protocol.startswith("grpc"):
                    asked = over_grpc(channel, case)
                else:
                    asked = over_one_link(server, links, slot, case)
                try:
                    told[await asyncio.wait_for(asked, PATIENCE)] += 1
                except (Finding, TimeoutError, EOFError, ConnectionError) as error:
                    raise Finding(f"{protocol} case {number} of seed {seed}: {error!r}\n{case!r:.3000}") from error

        await asyncio.gather(*(player(slot) for slot in range(AT_ONCE)))
        for _, writer in links.values():
            writer.close()
    expected = making.expected(0, ROW[None])
    np.testing.assert_allclose(server.predict("mnist", [ROW.tolist()]), expected, rtol=1e-4)
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("protocols", nargs="*", default=list(MAKERS), metavar="PROTOCOL", help=", ".join(MAKERS))
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        models = Path(name) / "models"
        making.digits(models / "mnist")
        making.table(models / "table")
        making.words(models / "words")
        making.logarithm(models / "logarithm")
        with serving(Path(name), models) as server:
            for protocol in args.protocols:
                began = time.monotonic()
                try:
                    told = asyncio.run(fuzz(server, protocol, args.cases, args.seed))
                except Finding as finding:
                    print(finding, file=sys.stderr)
                    print(server.said.read_text(), file=sys.stderr)
                    return 1
                took = time.monotonic() - began
                print(f"{protocol}: {args.cases} cases in {took:.0f} s: {dict(told.most_common())}", flush=True)
            if "Traceback" in server.said.read_text():
                print(server.said.read_text(), file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
