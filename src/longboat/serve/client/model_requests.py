"""Resolves a target (protocol, model, signature) and sends single requests.

What an address leaves open is requested from the server: the protocol, the model's name, its signature.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

from longboat.runtime.errors import FAILED, LongboatError
from longboat.runtime.light_dataclasses import replace
from longboat.serve import pages
from longboat.serve.client import http_codecs, model_signature
from longboat.serve.client.http_channel import ChannelResponse, HttpChannel
from longboat.serve.client.http_codecs import Columns
from longboat.serve.client.model_signature import Signature
from longboat.serve.client.rows import Row
from longboat.serve.client.target import Target
from longboat.serve.pages import PageContent

TIMEOUT = 30.0
AT_ONCE = 256
"""Maximum rows per request: servers limit its size."""
NEIGHBOUR = 2.0
"""Seconds to wait for an HTTP server next to a gRPC port, which may not exist."""


class Channel(Protocol):
    async def call(self, request: bytes) -> ChannelResponse: ...

    async def close(self) -> None: ...


def channel(target: Target, timeout: float = TIMEOUT) -> Channel:
    if target.protocol == "grpc":
        from longboat.serve.client.grpc_channel import GrpcChannel

        return GrpcChannel(target, timeout)
    return HttpChannel(target, timeout)


async def meet(target: Target, signature_name: str = "", timeout: float = TIMEOUT) -> tuple[Target, Signature]:
    """The target with protocol and model name, and the model's signature."""
    if not target.protocol:
        target = target.but(protocol=await _protocol(target, timeout))
    if not target.model:
        target = target.but(model=await _only_model(target, timeout))
    if target.protocol == "grpc":
        return target, await _named(target, await _grpc_signature(target, signature_name, timeout), timeout)
    if target.protocol == "v2":
        document = await _get(target, http_codecs.path_of(target, "v2"), timeout)
        server = await _get(target, "/v2", timeout, missing={})
        extensions = server.get("extensions") or () if isinstance(server, dict) else ()
        signature = model_signature.of_v2(target.model, document, [str(each) for each in extensions])
        return target, await _named(target, signature, timeout)
    document = await _get(target, http_codecs.path_of(target, "v1") + "/metadata", timeout)
    return target, await _named(target, model_signature.of_tfs(target.model, document, signature_name), timeout)


async def predict(target: Target, known: Signature, rows: Sequence[Row], timeout: float = TIMEOUT) -> Columns:
    """The outputs for all rows, sent in several requests."""
    codec = http_codecs.of(target, known)
    line = channel(target, timeout)
    columns: Columns = {}
    try:
        for at in range(0, len(rows), AT_ONCE):
            answer = await line.call(codec.encode(rows[at : at + AT_ONCE]))
            if answer.error:
                raise failed(target, answer)
            for name, values in codec.decode(answer.body).items():
                columns.setdefault(name, []).extend(values)
    finally:
        await line.close()
    return columns


def failed(target: Target, answer: ChannelResponse) -> LongboatError:
    """The error message and hint for a failed request."""
    where = target.authority
    detail = f": {answer.detail}" if answer.detail else ""
    messages = {
        "refused": (f"{where} refused the connection", "start a server: `longboat serve MODEL`"),
        "no connection": (f"cannot reach {where}{detail}", "check the address"),
        "timeout": (f"no response from {where} in time", "wait longer: --timeout SECONDS"),
        "not HTTP": (f"{where} does not speak HTTP", "use gRPC: --protocol grpc"),
        "TLS": (f"the TLS connection to {where} failed{detail}", "trust a certificate with --ca FILE"),
    }
    token = "set the server's token: --token-file FILE, or LONGBOAT_SERVE_TOKEN"
    hints = {"HTTP 401": token, "UNAUTHENTICATED": token, "HTTP 429": "the server is busy: try again"}
    other = (f"{where} answered {answer.error}{detail}", hints.get(answer.error, ""))
    message, hint = messages.get(answer.error, other)
    return LongboatError(message, hint, FAILED)


async def _protocol(target: Target, timeout: float) -> str:
    """The server's protocol: a gRPC server does not respond to HTTP/1.1 with HTTP/1.1."""
    line = HttpChannel(target, timeout)
    try:
        answer = await line.call(http_codecs.head(target, "GET", "/v2/health/live", 0))
    finally:
        await line.close()
    if answer.error in ("", "not HTTP", "connection closed", "connection reset") or answer.error.startswith("HTTP "):
        return "rest" if not answer.error or answer.error.startswith("HTTP ") else "grpc"
    raise failed(target, answer)


async def _only_model(target: Target, timeout: float) -> str:
    """The name of the server's only model, if it lists its models; most servers do not."""
    hint = "name it: --model NAME"
    over = _over_http(target)
    line = HttpChannel(over, timeout if over is target else min(timeout, NEIGHBOUR))
    try:
        answer = await line.call(http_codecs.head(over, "POST", "/v2/repository/index", 2) + b"{}")
    finally:
        await line.close()
    silent = answer.error != "" and not answer.error.startswith("HTTP ")
    if over is target and (silent or answer.error == "HTTP 401"):
        raise failed(target, answer)
    try:
        names = sorted({str(each["name"]) for each in json.loads(answer.body)}) if not answer.error else []
    except (ValueError, KeyError, TypeError):
        names = []
    if len(names) == 1:
        return names[0]
    what = f"it has {', '.join(names)}" if names else "it does not list them"
    raise LongboatError(f"which model of {target.authority}? {what}", hint)


async def page(target: Target, timeout: float = TIMEOUT) -> PageContent | None:
    """The model's details from its page, if it is a Longboat server."""
    from urllib.parse import quote

    over = _over_http(target)
    line = HttpChannel(over, timeout if over is target else min(timeout, NEIGHBOUR))
    try:
        answer = await line.call(http_codecs.head(over, "GET", f"/models/{quote(target.model, safe='')}", 0))
    finally:
        await line.close()
    return None if answer.error else pages.read(answer.body)


async def _named(target: Target, signature: Signature, timeout: float) -> Signature:
    """The signature with details that no protocol provides."""
    details = await page(target, timeout)
    return signature if details is None else model_signature.with_examples(signature, details.labels, details.examples)


def _over_http(target: Target) -> Target:
    """The HTTP address of a gRPC server: by convention the next port."""
    if target.protocol != "grpc":
        return target
    return replace(target, protocol="rest", port=min(target.port + 1, 65535))


async def _grpc_signature(target: Target, name: str, timeout: float) -> Signature:
    from longboat.serve.client import grpc_codec
    from longboat.serve.client.grpc_channel import GrpcChannel

    line = GrpcChannel(target, timeout, grpc_codec.METADATA)
    try:
        answer = await line.call(grpc_codec.metadata_request(target))
    finally:
        await line.close()
    if answer.error:
        raise failed(target, answer)
    return grpc_codec.signature_of(target.model, answer.body, name)


async def _get(target: Target, path: str, timeout: float, missing: Any = None) -> Any:
    line = HttpChannel(target, timeout)
    try:
        answer = await line.call(http_codecs.head(target, "GET", path, 0))
    finally:
        await line.close()
    if answer.error == "HTTP 404" and missing is not None:
        return missing
    if answer.error:
        raise failed(target, answer)
    try:
        return json.loads(answer.body)
    except ValueError as error:
        raise model_signature.not_understood(error) from None
