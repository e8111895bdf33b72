"""The MLP behind FastAPI and pydantic, as their documentation has one write it; served by uvicorn.

MODEL is the path of the ONNX file.
"""

from __future__ import annotations

import os

import numpy as np
import onnxruntime
from fastapi import FastAPI
from pydantic import BaseModel

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(os.environ["MODEL"], options)
app = FastAPI()


class Request(BaseModel):  # type: ignore[misc]
    instances: list[list[float]]


class Response(BaseModel):  # type: ignore[misc]
    predictions: list[list[float]]


@app.post("/v1/models/mnist:predict")  # type: ignore[untyped-decorator]
async def predict(request: Request) -> Response:
    (found,) = session.run(None, {"x": np.array(request.instances, dtype=np.float32)})
    return Response(predictions=found.tolist())
