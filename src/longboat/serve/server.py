"""One server process: loads models, opens ports, watches for new versions, drains on shutdown.

`worker_processes` starts and stops it.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from typing import Any

from longboat.runtime.errors import LongboatError
from longboat.serve import metrics, model_loading, routes
from longboat.serve.batching import Batcher
from longboat.serve.http_server import HttpSite
from longboat.serve.model_loading import Runner
from longboat.serve.model_sources import ModelSource
from longboat.serve.model_versions import ServedModel, ServedModels
from longboat.serve.settings import ServerSettings

BACKLOG = 4096
TICK = 1.0


def loader(settings: ServerSettings) -> Callable[[ModelSource, str], Runner]:
    def load(source: ModelSource, path: str) -> Runner:
        if source.foreign:
            from longboat.serve import tensorflow_models

            return tensorflow_models.load(path, source.name, source.only or 1)
        return model_loading.load(path, max(0, settings.threads), source.name)

    return load


def secure(settings: ServerSettings) -> ssl.SSLContext | None:
    """The TLS context, or None for plain HTTP."""
    if not settings.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key or None)
    except (OSError, ssl.SSLError) as error:
        raise LongboatError(
            f"cannot use the certificate {settings.tls_cert} and its key: {error}",
            "both must be PEM files, and the key must belong to the certificate",
        ) from None
    return context


class ModelServer:
    def __init__(
        self,
        settings: ServerSettings,
        listening: socket.socket,
        slots: metrics.SharedMetrics,
        index: int,
        tell: Callable[[str], None],
    ) -> None:
        self._settings, self._listening, self._slots, self._index = settings, listening, slots, index
        self._numbers = slots.read(index)
        self._began = time.time()
        self.models = ServedModels(settings.sources, loader(settings), settings.limits, settings.policy, tell)
        self._routes = routes.Routes(self.models, self._numbers, settings.token, settings.bounds.body, self._scrape)
        self._site = HttpSite(self._routes, self._routes.admit, routes.error, settings.bounds)
        self.asked = 0
        """The signal that stopped it."""
        self._hurry = False

    async def run(self, ready: Callable[[ModelServer], None]) -> None:
        """Serve until SIGTERM or SIGINT, then finish current requests; a second signal exits at once."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()

        def asked(number: int) -> None:
            self._hurry = stop.is_set()
            self.asked = number
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, asked, number)
        context = secure(self._settings)
        self.models.load_all(loop)
        http = await loop.create_server(
            self._site.connection, sock=self._listening, ssl=context, backlog=BACKLOG,
            ssl_handshake_timeout=10.0 if context else None,
        )  # fmt: skip
        grpc = None
        if self._settings.grpc_port >= 0:
            from longboat.serve.grpc_server import GrpcServer

            grpc = GrpcServer(self.models, self._numbers, self._settings)
            await grpc.start()
        tasks = [loop.create_task(self.models.watch()), loop.create_task(self._tick())]
        try:
            gc.collect()
            gc.freeze()  # loaded objects stay: exclude them from garbage collection
            ready(self)
            await stop.wait()
        finally:
            for task in tasks:
                task.cancel()
            await self._drain(http, grpc)

    async def _drain(self, http: asyncio.Server, grpc: Any) -> None:
        """Accept no new connections and answer current requests, within the drain time."""
        self._routes.draining = True
        if self.asked == signal.SIGTERM:
            await self._linger()
        http.close()
        self._site.drain()
        end = time.monotonic() + self._settings.drain
        ending = asyncio.ensure_future(grpc.stop(self._settings.drain)) if grpc is not None else None
        while (self._site.busy or (ending and not ending.done())) and time.monotonic() < end and not self._hurry:
            await asyncio.sleep(0.01)
        if ending is not None:
            ending.cancel()
        for connection in list(self._site.open):
            connection.close()
        await asyncio.sleep(0)
        self._publish()

    async def _linger(self) -> None:
        """Keep answering while a load balancer still sends requests, but close each connection after its response, so
        that the next request goes elsewhere."""
        self._site.draining = True
        end = time.monotonic() + self._settings.linger
        while time.monotonic() < end and not self._hurry:
            await asyncio.sleep(0.05)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self._site.sweep()
            if self._slots.count > 1:
                self._publish()

    def _publish(self) -> None:
        self._gather()
        self._slots.write(self._index, self._numbers)

    def _scrape(self) -> str:
        self._gather()
        others = [self._slots.read(index) for index in range(self._slots.count) if index != self._index]
        return metrics.text([self._numbers, *others])

    def _gather(self) -> None:
        """Update the metrics from the batchers."""
        now: dict[tuple[str, metrics.Labels], float] = {
            ("longboat_connections", ()): float(len(self._site.open)),
            ("longboat_start_time_seconds", ()): self._began,
        }
        for model in self.models.by_name.values():
            for version in model.status():
                labels = (("model", model.name), ("version", str(version.number)))
                now["longboat_model_state", labels] = float(version.batcher is not None)
                if version.batcher is not None:
                    now["longboat_queue_rows", labels] = float(version.batcher.waiting)
                    self._count(labels, version.batcher)
        metrics.gauges(self._numbers, now)

    def _count(self, labels: metrics.Labels, batcher: Batcher) -> None:
        sizes, rows = batcher.take_counts()
        for power, batches in enumerate(sizes):
            if batches:
                self._numbers.count("longboat_batches_total", (*labels, ("rows", f"{1 << power}")), batches)
        if rows:
            self._numbers.count("longboat_rows_total", labels, rows)


def described(model: ServedModel) -> str:
    """A model as shown in the ready message."""
    numbers = ", ".join(str(version.number) for version in model.available())
    return f"{model.name} (version {numbers})"


def start_loop(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine on uvloop, without numpy's warnings about float overflow."""
    import numpy as np
    import uvloop

    np.seterr(all="ignore")
    gc.set_threshold(50_000, 20, 20)  # requests leave no reference cycles
    uvloop.run(main())
