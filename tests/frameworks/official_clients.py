"""Asks a running server with the official clients and nothing of ours: python official_clients.py REST-PORT GRPC-PORT

Runs in an environment with tensorflow-serving-api and tritonclient. Prints a line for each thing that worked; an
exception is a failure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)
from tritonclient.utils import InferenceServerException

REST, GRPC = (f"127.0.0.1:{port}" for port in sys.argv[1:3])
ROWS = np.random.default_rng(0).random((3, 784), dtype=np.float32)


def refusal(kind: Any, call: Callable[[], Any]) -> Any:
    """The error that a call must end with."""
    try:
        call()
    except kind as error:
        return error
    raise SystemExit("what is wrong was taken")


def tensorflow_serving() -> Any:
    channel = grpc.insecure_channel(GRPC)
    service = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "mnist"
    request.model_spec.signature_name = "serving_default"
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(ROWS))
    answer = service.Predict(request, timeout=10)
    found = tf.make_ndarray(answer.outputs["probabilities"])
    assert found.shape == (3, 10), found.shape
    assert answer.model_spec.version.value == 1
    print("tfs Predict")

    ask = get_model_metadata_pb2.GetModelMetadataRequest()
    ask.model_spec.name = "mnist"
    ask.metadata_field.append("signature_def")
    told = get_model_metadata_pb2.SignatureDefMap()
    assert service.GetModelMetadata(ask, timeout=10).metadata["signature_def"].Unpack(told)
    ends = told.signature_def["serving_default"]
    assert ends.inputs["x"].dtype == tf.float32.as_datatype_enum
    assert [dim.size for dim in ends.inputs["x"].tensor_shape.dim] == [-1, 784]
    print("tfs GetModelMetadata")

    status = get_model_status_pb2.GetModelStatusRequest()
    status.model_spec.name = "mnist"
    (version,) = model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus(status).model_version_status
    assert version.state == get_model_status_pb2.ModelVersionStatus.AVAILABLE
    print("tfs GetModelStatus")

    classify = classification_pb2.ClassificationRequest()
    classify.model_spec.name = "mnist"
    classify.input.example_list.examples.add().features.feature["x"].float_list.value.extend(ROWS[0])
    (classes,) = service.Classify(classify).result.classifications
    assert [each.label for each in classes.classes] == [str(digit) for digit in range(10)]
    np.testing.assert_allclose([each.score for each in classes.classes], found[0], rtol=1e-5)
    print("tfs Classify")

    texts = predict_pb2.PredictRequest()
    texts.model_spec.name = "words"
    texts.inputs["text"].CopyFrom(tf.make_tensor_proto(["good", "bad bad"]))
    labels = tf.make_ndarray(service.Predict(texts).outputs["label"])
    assert labels.tolist() == [b"good", b"bad"], labels
    print("tfs strings")

    request.inputs["x"].CopyFrom(tf.make_tensor_proto(ROWS[:, :5]))
    assert refusal(grpc.RpcError, lambda: service.Predict(request)).code() is grpc.StatusCode.INVALID_ARGUMENT
    request.model_spec.name = "nobody"
    assert refusal(grpc.RpcError, lambda: service.Predict(request)).code() is grpc.StatusCode.NOT_FOUND
    print("tfs errors")
    return found


def triton(client: Any, module: Any, expected: Any) -> None:
    name = module.__name__
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("mnist")
    assert client.is_model_ready("mnist", "1")
    assert not client.is_model_ready("nobody")
    client.get_server_metadata()
    client.get_model_metadata("mnist")
    print(name, "health and metadata")
    for binary in (True, False) if module is over_http else (True,):
        rows = module.InferInput("x", [3, 784], "FP32")
        rows.set_data_from_numpy(ROWS, **({"binary_data": binary} if module is over_http else {}))
        wanted = module.InferRequestedOutput(
            "probabilities", **({"binary_data": binary} if module is over_http else {})
        )
        for outputs in ([wanted], None):
            answer = client.infer("mnist", [rows], outputs=outputs, request_id="7")
            np.testing.assert_allclose(answer.as_numpy("probabilities"), expected, rtol=1e-5)
            told = answer.get_response()
            assert (told["id"] if module is over_http else told.id) == "7"
    print(name, "numbers")
    texts = module.InferInput("text", [2], "BYTES")
    texts.set_data_from_numpy(np.array(["good", "bad"], dtype=object))
    assert client.infer("words", [texts]).as_numpy("label").tolist() == [b"good", b"bad"]
    print(name, "strings")
    if module is over_http:
        packed = client.infer("mnist", [rows], request_compression_algorithm="gzip")
        np.testing.assert_allclose(packed.as_numpy("probabilities"), expected, rtol=1e-5)
        print(name, "gzip")
    wrong = module.InferInput("x", [3, 5], "FP32")
    wrong.set_data_from_numpy(ROWS[:, :5].copy())
    assert "[*, 784]" in str(refusal(InferenceServerException, lambda: client.infer("mnist", [wrong])))
    print(name, "errors")


if __name__ == "__main__":
    found = tensorflow_serving()
    triton(over_http.InferenceServerClient(REST), over_http, found)
    triton(over_grpc.InferenceServerClient(GRPC), over_grpc, found)
    print("all done")
