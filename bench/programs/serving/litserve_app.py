"""The MLP behind LitServe, as its documentation has one write it.

python litserve_app.py PORT; MODEL is the path of the ONNX file.
"""

import os
import sys
from typing import Any

import litserve
import numpy as np
import onnxruntime


class Api(litserve.LitAPI):  # type: ignore[misc]
    def setup(self, device: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(os.environ["MODEL"], options)

    def decode_request(self, request: dict[str, Any]) -> Any:
        return np.array(request["instances"], dtype=np.float32)

    def predict(self, rows: Any) -> Any:
        return self.session.run(None, {"x": rows})[0]

    def encode_response(self, found: Any) -> dict[str, Any]:
        return {"predictions": found.tolist()}


if __name__ == "__main__":
    server = litserve.LitServer(Api(api_path="/v1/models/mnist:predict"), accelerator="cpu")
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="warning")
