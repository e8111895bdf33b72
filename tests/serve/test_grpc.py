"""gRPC by bytes on the wire: our own messages, a plain channel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from longboat.runtime import bundle
from longboat.serve import grpc_fast_path, grpc_tensors
from longboat.serve.protos import oip_pb2 as oip
from longboat.serve.protos import tfs_pb2 as tfs
from tests.serve import making
from tests.serve.serving import PATIENCE, Serving, serving

ROWS = np.random.default_rng(0).random((3, 784), dtype=np.float32)
TFS = "/tensorflow.serving.PredictionService/"
OIP = "/inference.GRPCInferenceService/"


@pytest.fixture
def channel(server: Serving) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as opened:
        yield opened


def call(channel: grpc.Channel, method: str, request: Any, answer: Any, **more: Any) -> Any:
    content = request if isinstance(request, bytes) else request.SerializeToString()
    return answer.FromString(channel.unary_unary(method)(content, timeout=PATIENCE, **more))


def refusal(channel: grpc.Channel, method: str, request: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(channel, method, request, tfs.PredictResponse)
    return caught.value.code(), caught.value.details()


def predict_request(model: str, rows: np.ndarray[Any, Any] = ROWS) -> Any:
    request = tfs.PredictRequest()
    request.model_spec.name = model
    tensor = request.inputs["x"]
    tensor.dtype = 1
    for length in rows.shape:
        tensor.tensor_shape.dim.add(size=length)
    tensor.tensor_content = rows.tobytes()
    return request


def infer_request(rows: np.ndarray[Any, Any] = ROWS) -> Any:
    request = oip.ModelInferRequest(model_name="mnist", id="7")
    request.inputs.add(name="x", datatype="FP32", shape=rows.shape)
    request.raw_input_contents.append(rows.tobytes())
    return request


def values(tensor: Any) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = np.array(tensor.float_val, np.float32)
    return found.reshape([dim.size for dim in tensor.tensor_shape.dim])


def test_predict_takes_bytes_and_lists(channel: grpc.Channel) -> None:
    request = predict_request("mnist")
    answer = call(channel, TFS + "Predict", request, tfs.PredictResponse)
    np.testing.assert_allclose(values(answer.outputs["probabilities"]), making.expected(0, ROWS), rtol=1e-4)
    assert (answer.model_spec.name, answer.model_spec.version.value) == ("mnist", 1)
    request.inputs["x"].tensor_content = b""
    request.inputs["x"].float_val.extend(ROWS.ravel())
    again = call(channel, TFS + "Predict", request, tfs.PredictResponse)
    np.testing.assert_allclose(values(again.outputs["probabilities"]), making.expected(0, ROWS), rtol=1e-4)


def test_requests_that_differ_in_their_numbers_alone_are_told_apart(channel: grpc.Channel) -> None:
    """From the second one on the message is not taken apart any more."""
    for seed in range(6):
        rows = np.random.default_rng(seed).random((1, 784), dtype=np.float32)
        answer = call(channel, TFS + "Predict", predict_request("mnist", rows), tfs.PredictResponse)
        np.testing.assert_allclose(values(answer.outputs["probabilities"]), making.expected(0, rows), rtol=1e-4)
    wrong = predict_request("mnisu", rows)
    assert refusal(channel, TFS + "Predict", wrong)[0] is grpc.StatusCode.NOT_FOUND


def test_one_value_may_stand_for_all(channel: grpc.Channel) -> None:
    request = predict_request("mnist")
    request.inputs["x"].tensor_content = b""
    request.inputs["x"].float_val.append(0.5)
    answer = call(channel, TFS + "Predict", request, tfs.PredictResponse)
    half = making.expected(0, np.full((3, 784), 0.5, np.float32))
    np.testing.assert_allclose(values(answer.outputs["probabilities"]), half, rtol=1e-4)


def test_an_output_filter_leaves_the_others_out(channel: grpc.Channel) -> None:
    request = tfs.PredictRequest(output_filter=["twice"])
    request.model_spec.name = "table"
    request.inputs["a"].dtype = 1
    request.inputs["a"].tensor_shape.dim.add(size=1)
    request.inputs["a"].float_val.append(4)
    request.inputs["b"].dtype = 9
    for length in (1, 3):
        request.inputs["b"].tensor_shape.dim.add(size=length)
    request.inputs["b"].int64_val.extend([1, 2, 3])
    answer = call(channel, TFS + "Predict", request, tfs.PredictResponse)
    assert {name: list(tensor.float_val) for name, tensor in answer.outputs.items()} == {"twice": [8.0]}


def test_infer_takes_raw_and_typed_contents(channel: grpc.Channel) -> None:
    request = infer_request()
    answer = call(channel, OIP + "ModelInfer", request, oip.ModelInferResponse)
    assert (answer.model_name, answer.model_version, answer.id) == ("mnist", "1", "7")
    (content,) = answer.raw_output_contents
    np.testing.assert_allclose(np.frombuffer(content, np.float32).reshape(3, 10), making.expected(0, ROWS), rtol=1e-4)
    del request.raw_input_contents[:]
    request.inputs[0].contents.fp32_contents.extend(ROWS.ravel())
    assert call(channel, OIP + "ModelInfer", request, oip.ModelInferResponse).raw_output_contents[0] == content


def test_health_over_grpc(channel: grpc.Channel) -> None:
    assert call(channel, OIP + "ServerLive", b"", oip.ServerLiveResponse).live
    assert call(channel, OIP + "ServerReady", b"", oip.ServerReadyResponse).ready
    ask = oip.ModelRequest(name="mnist")
    assert call(channel, OIP + "ModelReady", ask, oip.ModelReadyResponse).ready
    assert not call(channel, OIP + "ModelReady", oip.ModelRequest(name="nobody"), oip.ModelReadyResponse).ready


def test_regress_over_grpc(channel: grpc.Channel) -> None:
    request = tfs.ExamplesRequest()
    request.model_spec.name = "table"
    listed = request.input.example_list_with_context
    listed.context.features.feature["b"].int64_list.value.extend([1, 1, 1])
    listed.examples.add().features.feature["a"].float_list.value.append(4)
    answer = call(channel, TFS + "Regress", request, tfs.RegressionResponse)
    assert [row.value for row in answer.result.regressions] == [7.0]


def test_bad_calls_have_a_status_and_words(channel: grpc.Channel) -> None:
    invalid, not_found = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
    predict = TFS + "Predict"
    assert refusal(channel, predict, predict_request("nobody"))[0] is not_found
    assert refusal(channel, predict, predict_request("mnist", ROWS[:, :5])) == (
        invalid,
        "input 'x' expects the shape [*, 784], got [3, 5]",
    )
    assert refusal(channel, predict, predict_request("mnist", ROWS[:0])) == (
        invalid,
        "input 'x' has no rows: send at least one",
    )
    request = predict_request("mnist")
    request.inputs["x"].dtype = 2
    assert refusal(channel, predict, request) == (invalid, "input 'x' expects DT_FLOAT, got DT_DOUBLE")
    request.inputs["x"].dtype = 99
    assert "got data type 99" in refusal(channel, predict, request)[1]
    request = predict_request("mnist")
    request.inputs["x"].tensor_content = b"abc"
    assert refusal(channel, predict, request) == (invalid, "input 'x': [3, 784] of float32 is 9408 bytes, got 3")
    request = predict_request("mnist")
    request.model_spec.version.value = 5
    assert refusal(channel, predict, request)[0] is not_found
    request.model_spec.ClearField("version")
    request.model_spec.signature_name = "other"
    assert refusal(channel, predict, request)[0] is invalid
    assert refusal(channel, predict, b"\xff\xff") == (invalid, "the request is not a valid message of this method")
    request = infer_request()
    request.inputs[0].datatype = "INT64"
    assert refusal(channel, OIP + "ModelInfer", request) == (
        invalid,
        "input 'x' expects the datatype FP32, got 'INT64'",
    )
    request = infer_request()
    request.raw_input_contents.append(b"")
    assert refusal(channel, OIP + "ModelInfer", request)[0] is invalid
    assert refusal(channel, "/tensorflow.serving.PredictionService/Dance", b"")[0] is grpc.StatusCode.UNIMPLEMENTED


def test_a_message_beyond_the_limit_is_refused(models: Path, tmp_path: Path) -> None:
    with (
        serving(tmp_path, models / "mnist", "--max-body", "5K") as small,
        grpc.insecure_channel(f"127.0.0.1:{small.grpc_port}") as channel,
    ):
        assert refusal(channel, TFS + "Predict", predict_request("mnist"))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        one = predict_request("mnist", ROWS[:1])
        assert call(channel, TFS + "Predict", one, tfs.PredictResponse).outputs


def test_a_token_is_asked_for(models: Path, tmp_path: Path) -> None:
    with (
        serving(tmp_path, models / "mnist", env={"LONGBOAT_SERVE_TOKEN": "s3cret"}) as guarded,
        grpc.insecure_channel(f"127.0.0.1:{guarded.grpc_port}") as channel,
    ):
        request = predict_request("mnist")
        assert refusal(channel, TFS + "Predict", request)[0] is grpc.StatusCode.UNAUTHENTICATED
        assert call(channel, OIP + "ServerLive", b"", oip.ServerLiveResponse).live
        metadata = (("authorization", "Bearer s3cret"),)
        assert call(channel, TFS + "Predict", request, tfs.PredictResponse, metadata=metadata).outputs


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 10), (3,), (2, 0), (300, 7, 2)])
def test_an_answer_written_by_hand_is_what_protobuf_writes(kind: Any, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(1).random(shape).astype(kind)
    spec = grpc_fast_path.spec("mnist", 1000, "serving_default")
    written = grpc_fast_path.response({"y": array}, spec)
    assert written is not None
    expected = tfs.PredictResponse.FromString(spec)
    grpc_tensors.to_tfs(array, expected.outputs["y"])
    assert tfs.PredictResponse.FromString(written) == expected
    assert written == expected.SerializeToString(deterministic=True)


def test_a_frame_is_the_request_but_for_its_numbers() -> None:
    request = predict_request("mnist", ROWS[:1])
    raw = request.SerializeToString()
    tensor = bundle.Tensor("x", "float32", (None, 784))
    frame = grpc_fast_path.frame(raw, request, (tensor,))
    assert frame is not None
    assert frame.content(raw) == ROWS[:1].tobytes()
    assert frame.content(predict_request("mnist", ROWS[1:2]).SerializeToString()) == ROWS[1:2].tobytes()
    assert frame.content(predict_request("mnisu", ROWS[:1]).SerializeToString()) is None
    assert grpc_fast_path.frame(raw, request, (tensor, tensor)) is None


def test_other_types_are_left_to_protobuf() -> None:
    assert grpc_fast_path.response({"y": np.zeros(3, np.int64)}, b"") is None
