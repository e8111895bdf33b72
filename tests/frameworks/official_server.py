"""TensorFlow Serving's gRPC made of its official package and nothing of ours: python official_server.py

Runs in an environment with tensorflow-serving-api. Prints its port. The model `sum` takes three numbers; the model
`clicks` is what an estimator exports: it takes serialized tf.Examples with Criteo's columns.
"""

from __future__ import annotations

from concurrent import futures
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import get_model_metadata_pb2, predict_pb2, prediction_service_pb2_grpc

FLOAT, STRING = 1, 7


def info(name: str, kind: int, shape: list[int | None]) -> Any:
    return meta_graph_pb2.TensorInfo(name=name, dtype=kind, tensor_shape=tf.TensorShape(shape).as_proto())


class Service(prediction_service_pb2_grpc.PredictionServiceServicer):  # type: ignore[misc]
    def GetModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = get_model_metadata_pb2.GetModelMetadataResponse()
        answer.model_spec.name = request.model_spec.name
        answer.model_spec.version.value = 7
        signatures = get_model_metadata_pb2.SignatureDefMap()
        signature = signatures.signature_def["serving_default"]
        if request.model_spec.name == "clicks":
            signature.inputs["inputs"].CopyFrom(info("input_example_tensor:0", STRING, [None]))
            signature.outputs["classes"].CopyFrom(info("classes:0", STRING, [None, 2]))
            signature.outputs["scores"].CopyFrom(info("scores:0", FLOAT, [None, 2]))
            signature.method_name = "tensorflow/serving/classify"
        else:
            signature.inputs["x"].CopyFrom(info("x:0", FLOAT, [None, 3]))
            signature.outputs["probabilities"].CopyFrom(info("p:0", FLOAT, [None, 2]))
            signature.method_name = "tensorflow/serving/predict"
        answer.metadata["signature_def"].Pack(signatures)
        return answer

    def Predict(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = predict_pb2.PredictResponse()
        if request.model_spec.name == "clicks":
            texts = tf.make_ndarray(request.inputs["inputs"])
            rows = [tf.train.Example.FromString(text).features.feature for text in texts]
            yes = np.array([row["C1"].bytes_list.value[0] == b"12e45678" for row in rows], np.float32)
            if not all(row["I1"].float_list.value for row in rows) or any("clicked" in row for row in rows):
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the columns are not Criteo's")
            answer.outputs["classes"].CopyFrom(tf.make_tensor_proto(np.array([[b"0", b"1"]] * len(rows))))
            answer.outputs["scores"].CopyFrom(tf.make_tensor_proto(np.stack([1 - yes, yes], 1)))
        else:
            yes = (tf.make_ndarray(request.inputs["x"]).sum(axis=1) > 1.5).astype(np.float32)
            answer.outputs["probabilities"].CopyFrom(tf.make_tensor_proto(np.stack([1 - yes, yes], 1)))
        return answer


server = grpc.server(futures.ThreadPoolExecutor(4))
prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Service(), server)
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
server.wait_for_termination()
