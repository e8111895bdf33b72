"""Calls PredictionService.Predict over and over and says how fast it is answered.

python grpc_load.py ADDRESS FILE CALLS-AT-ONCE SECONDS; FILE holds the serialised request. Prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import grpc.aio
import uvloop


async def main() -> None:
    address, file, together, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    with open(file, "rb") as opened:
        request = opened.read()
    latencies: list[float] = []
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        await call(request, wait_for_ready=True, timeout=20)
        began = time.perf_counter()
        until = began + seconds

        async def caller() -> None:
            while (now := time.perf_counter()) < until:
                await call(request)
                latencies.append(time.perf_counter() - now)

        await asyncio.gather(*(caller() for _ in range(together)))
        took = time.perf_counter() - began
    ordered = sorted(latencies)
    at99 = ordered[int(0.99 * len(ordered))] * 1000
    print(json.dumps({"rate": len(ordered) / took, "p50": ordered[len(ordered) // 2] * 1000, "p99": at99}))


if __name__ == "__main__":
    uvloop.run(main())
