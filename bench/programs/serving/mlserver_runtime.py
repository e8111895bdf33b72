"""The MLP behind MLServer: a custom runtime with its numpy codec, as its documentation has one write it.

MODEL is the path of the ONNX file.
"""

from __future__ import annotations

import os

import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Digits(MLModel):  # type: ignore[misc]
    async def load(self) -> bool:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(os.environ["MODEL"], options)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        rows = NumpyCodec.decode_input(payload.inputs[0])
        (found,) = self.session.run(None, {"x": rows})
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("probabilities", found)])
