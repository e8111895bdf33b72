"""Sends one HTTP request over and over on several connections and says how fast it is answered.

python serving_load.py HOST PORT FILE CONNECTIONS SECONDS [RATE]

FILE holds the whole request, headers and all. Without RATE each connection sends the next request when it has the
answer (closed loop). With RATE requests are due at fixed times, and a latency counts from when its request was due.
Prints one line of JSON. The same program measures every server, so its own cost falls on all alike.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from typing import Any


class Client(asyncio.Protocol):
    """One connection. Answers are told apart by their Content-Length."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._transport: Any = None
        self._buffer = b""
        self._due: deque[float] = deque()
        self.free = True

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def send(self, due: float) -> None:
        self.free = False
        self._due.append(due)
        self._transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        data = self._buffer + data if self._buffer else data
        at = data.find(b"\r\n\r\n")
        if at < 0:
            self._buffer = data
            return
        head = data[:at].lower()
        start = head.find(b"content-length:")
        if start < 0:
            self._load.fail(b"no Content-Length: " + head)
            return
        line = head[start + 15 :]
        size = int(line.partition(b"\r\n")[0])
        if len(data) < at + 4 + size:
            self._buffer = data
            return
        self._buffer = b""
        if data[9:12] == b"429":
            self._load.refused += 1
            self._due.popleft()
            asyncio.get_running_loop().call_later(0.005, self._load.again, self)
            return
        if data[9:12] != b"200":
            self._load.fail(data[:400])
            return
        self.free = True
        self._load.answered(self, self._due.popleft())

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._load.over:
            self._load.fail(f"the connection was lost: {exc}".encode())


class Load:
    def __init__(self, request: bytes, seconds: float, rate: float) -> None:
        self.request, self._seconds, self._rate = request, seconds, rate
        self.latencies: list[float] = []
        self.refused = 0
        """Answers 429: such a client pauses 5 ms. They count neither as requests nor in the latencies."""
        self.over = False
        self.error = b""
        self._clients: list[Client] = []
        self._waiting: deque[float] = deque()
        self._end = asyncio.Event()
        self._until = 0.0

    def fail(self, words: bytes) -> None:
        self.error = self.error or words
        self._end.set()

    def again(self, client: Client) -> None:
        now = time.perf_counter()
        if now >= self._until:
            self._end.set()
        elif not self.over:
            client.send(now)

    def answered(self, client: Client, due: float) -> None:
        now = time.perf_counter()
        self.latencies.append(now - due)
        if now >= self._until:
            self._end.set()
        elif not self._rate:
            client.send(now)
        elif self._waiting:
            client.send(self._waiting.popleft())

    async def run(self, host: str, port: int, connections: int) -> dict[str, float | str]:
        loop = asyncio.get_running_loop()
        for _ in range(connections):
            _, client = await loop.create_connection(lambda: Client(self), host, port)
            self._clients.append(client)
        began = time.perf_counter()
        self._until = began + self._seconds
        if self._rate:
            await self._paced(began)
        else:
            for client in self._clients:
                client.send(began)
            await self._end.wait()
        self.over = True
        if self.error:
            return {"error": self.error.decode(errors="replace")}
        took = time.perf_counter() - began
        ordered = sorted(self.latencies)

        def at(share: float) -> float:
            return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000

        return {
            "refused": self.refused,
            "rate": len(ordered) / took,
            "p50": at(0.5),
            "p99": at(0.99),
            "p999": at(0.999),
            "most": ordered[-1] * 1000,
        }

    async def _paced(self, began: float) -> None:
        """Requests are due at even times, whether a connection is free or not."""
        sent = 0
        while not self._end.is_set():
            now = time.perf_counter()
            if now >= self._until:
                break
            while sent < (now - began) * self._rate:
                due = began + sent / self._rate
                sent += 1
                client = next((client for client in self._clients if client.free), None)
                if client is None:
                    self._waiting.append(due)
                else:
                    client.send(due)
            await asyncio.sleep(0.0005)


async def main() -> None:
    host, port, file, connections, seconds, *rate = sys.argv[1:]
    with open(file, "rb") as opened:
        request = opened.read()
    load = Load(request, float(seconds), float(rate[0]) if rate else 0.0)
    print(json.dumps(await load.run(host, int(port), int(connections))))


if __name__ == "__main__":
    import uvloop

    uvloop.run(main())
