"""Settings of the server, passed to every process."""

from __future__ import annotations

from longboat.runtime.light_dataclasses import dataclass, field
from longboat.serve.batching import BatchLimits
from longboat.serve.http_server import HttpLimits
from longboat.serve.model_sources import ModelSource


@dataclass(frozen=True)
class ServerSettings:
    sources: tuple[ModelSource, ...]
    host: str = "127.0.0.1"
    port: int = 8501
    """HTTP port: TensorFlow Serving's REST, Open Inference Protocol, pages, metrics. 0: any free port."""
    grpc_port: int = 8500
    """gRPC port. -1: no gRPC. 0: any free port."""
    policy: str = "latest"
    workers: int = 1
    threads: int = 0
    """Threads per model; 0: by its size."""
    token: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    drain: float = 30.0
    """Seconds to finish current requests at shutdown."""
    limits: BatchLimits = field(default_factory=BatchLimits)
    bounds: HttpLimits = field(default_factory=HttpLimits)
    linger: float = 0.0
    """Seconds to accept requests after SIGTERM, until load balancers stop sending them."""
