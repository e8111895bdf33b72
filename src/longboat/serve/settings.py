"""What an operator may choose, as one value that every process of the server gets."""

from __future__ import annotations

from dataclasses import dataclass, field

from longboat.serve.batching import BatchLimits
from longboat.serve.http_server import HttpLimits
from longboat.serve.model_sources import ModelSource


@dataclass(frozen=True)
class ServerSettings:
    sources: tuple[ModelSource, ...]
    host: str = "127.0.0.1"
    port: int = 8501
    """HTTP: TensorFlow Serving's REST, the Open Inference Protocol, pages, metrics. 0: any that is free."""
    grpc_port: int = 8500
    """-1: no gRPC. 0: any that is free."""
    policy: str = "latest"
    workers: int = 1
    threads: int = 0
    """Of a model; 0: by its size."""
    token: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    drain: float = 30.0
    """Seconds that requests under way have when the server is stopped."""
    limits: BatchLimits = field(default_factory=BatchLimits)
    bounds: HttpLimits = field(default_factory=HttpLimits)
    linger: float = 0.0
    """Seconds that it goes on taking requests after SIGTERM, until whoever sends them knows that it is going."""
