"""The floor of gRPC in Python: a grpc.aio handler that decodes a PredictRequest, encodes an answer, computes nothing.

python grpc_empty.py PORT
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc.aio
import numpy as np
import uvloop

from longboat.serve.protos import tfs_pb2 as tfs


async def predict(request: Any, _: Any) -> Any:
    given = request.inputs["x"]
    np.frombuffer(given.tensor_content, np.float32).reshape([dim.size for dim in given.tensor_shape.dim])
    answer = tfs.PredictResponse()
    output = answer.outputs["probabilities"]
    output.dtype = 1
    output.tensor_shape.dim.add(size=1)
    output.tensor_shape.dim.add(size=10)
    output.float_val.extend([0.1] * 10)
    answer.model_spec.name = "mnist"
    answer.model_spec.version.value = 1
    return answer


async def main() -> None:
    handler = grpc.unary_unary_rpc_method_handler(
        predict, tfs.PredictRequest.FromString, tfs.PredictResponse.SerializeToString
    )
    server = grpc.aio.server()
    service = grpc.method_handlers_generic_handler("tensorflow.serving.PredictionService", {"Predict": handler})
    server.add_generic_rpc_handlers([service])
    server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
    await server.start()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
