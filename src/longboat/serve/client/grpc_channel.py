"""Sends encoded requests over gRPC, with the interface of `http_channel`."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

from longboat.install_hint import install_command
from longboat.runtime.errors import LongboatError
from longboat.serve.client.grpc_codec import PREDICT
from longboat.serve.client.http_channel import ChannelResponse
from longboat.serve.client.target import Target

LARGEST = 1 << 30


class GrpcChannel:
    """One connection, not shared with other channels of this process, because a load test counts them."""

    def __init__(self, target: Target, timeout: float, method: str = PREDICT) -> None:
        try:
            import grpc.aio
        except ModuleNotFoundError:
            raise LongboatError(
                "gRPC is not installed", f"{install_command('serve')}\nor use HTTP: --protocol rest"
            ) from None
        self._timeout = timeout
        self._error = grpc.aio.AioRpcError
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", LARGEST),
            ("grpc.max_send_message_length", LARGEST),
            ("grpc.enable_http_proxy", 0),
        ]
        self._channel: Any
        if target.tls:
            try:
                roots = Path(target.ca).read_bytes() if target.ca else None
            except OSError as error:
                raise LongboatError(f"cannot read {target.ca}: {error.strerror}") from None
            self._channel = grpc.aio.secure_channel(target.authority, grpc.ssl_channel_credentials(roots), options)
        else:
            self._channel = grpc.aio.insecure_channel(target.authority, options)
        self._call = self._channel.unary_unary(method)
        self._metadata = (("authorization", f"Bearer {target.token}"),) if target.token else None

    async def call(self, request: bytes) -> ChannelResponse:
        sent = perf_counter()
        try:
            body = await self._call(request, timeout=self._timeout, metadata=self._metadata)
        except self._error as error:
            name = error.code().name
            kind = {"UNAVAILABLE": "refused", "DEADLINE_EXCEEDED": "timeout"}.get(name, name)
            detail = error.details() or ""
            if kind == "refused" and "onnect" not in detail:
                kind = name  # the server is draining
            return ChannelResponse(sent, perf_counter(), kind, detail[:300])
        return ChannelResponse(sent, perf_counter(), body=body)

    async def close(self) -> None:
        await self._channel.close()
