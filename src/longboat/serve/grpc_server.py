"""gRPC server: TensorFlow Serving's PredictionService and ModelService, and the Open Inference Protocol.

Methods are registered by full name with messages from `protos`, so no generated service code is needed. `grpc_tensors`
converts tensors. A call that was cancelled or whose deadline has passed is not computed.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import numpy as np
from google.protobuf.message import DecodeError

from longboat import __version__
from longboat.runtime.errors import LongboatError
from longboat.runtime.rank_env import bracketed
from longboat.serve import grpc_fast_path, grpc_tensors, input_checks, tfs_rest
from longboat.serve.batching import Batcher
from longboat.serve.dtypes import BY_NAME
from longboat.serve.metrics import ProcessMetrics
from longboat.serve.model_versions import ServedModels
from longboat.serve.prediction import RequestCounters
from longboat.serve.protos import oip_pb2 as oip
from longboat.serve.protos import tfs_pb2 as tfs
from longboat.serve.request_errors import RefusalReason, RequestRefused, invalid, log_refusal, unforeseen
from longboat.serve.settings import ServerSettings
from longboat.serve.v2_rest import EXTENSIONS

if TYPE_CHECKING:
    Outputs = dict[str, np.ndarray[Any, Any]]

MOST_FRAMES = 256
OPEN = ("/inference.GRPCInferenceService/ServerLive", "/inference.GRPCInferenceService/ServerReady")
CODES = {code.value[0]: code for code in grpc.StatusCode}
SIGNATURE_MAP = "type.googleapis.com/tensorflow.serving.SignatureDefMap"
UNKNOWN = 2

_TFS = "tensorflow.serving.PredictionService"
_STATUS = "tensorflow.serving.ModelService"
_OIP = "inference.GRPCInferenceService"


class GrpcServer:
    """The gRPC server of one process."""

    def __init__(self, models: ServedModels, numbers: ProcessMetrics, settings: ServerSettings) -> None:
        self._models, self._numbers, self._settings = models, numbers, settings
        self._countings: dict[tuple[str, str], RequestCounters] = {}
        self._specs: dict[tuple[str, int], bytes] = {}
        self._frames: dict[int, grpc_fast_path.Frame] = {}
        """Frames by length of the request."""
        most = settings.bounds.body
        options = [
            ("grpc.so_reuseport", int(settings.workers > 1)),
            ("grpc.max_receive_message_length", most),
            ("grpc.max_send_message_length", -1),
        ]
        guards = [_Guard(settings.token)] if settings.token else []
        self._server = grpc.aio.server(interceptors=guards, options=options)
        self._server.add_generic_rpc_handlers([_Methods(self._methods())])

    async def start(self) -> None:
        address = f"{bracketed(self._settings.host)}:{self._settings.grpc_port}"
        try:
            if self._settings.tls_cert:
                with open(self._settings.tls_key, "rb") as key, open(self._settings.tls_cert, "rb") as chain:
                    pair = (key.read(), chain.read())
                self._server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
            else:
                self._server.add_insecure_port(address)
        except RuntimeError:
            raise LongboatError(
                f"gRPC cannot listen on {address}: the port is already in use",
                "use `--grpc-port 0` to pick a free port, or `--no-grpc` to turn gRPC off",
            ) from None
        await self._server.start()

    async def stop(self, grace: float) -> None:
        await self._server.stop(grace)

    def _methods(self) -> dict[str, tuple[Callable[[Any, Any], Awaitable[Any]], Any]]:
        """Full method name -> handler, and the class of its request (None: raw bytes)."""
        return {
            f"/{_TFS}/Predict": (self._predict, None),
            f"/{_TFS}/Classify": (self._classify, tfs.ExamplesRequest),
            f"/{_TFS}/Regress": (self._regress, tfs.ExamplesRequest),
            f"/{_TFS}/GetModelMetadata": (self._metadata, tfs.GetModelMetadataRequest),
            f"/{_STATUS}/GetModelStatus": (self._status, tfs.GetModelStatusRequest),
            f"/{_OIP}/ServerLive": (self._live, oip.Empty),
            f"/{_OIP}/ServerReady": (self._ready, oip.Empty),
            f"/{_OIP}/ServerMetadata": (self._server_metadata, oip.Empty),
            f"/{_OIP}/ModelReady": (self._model_ready, oip.ModelRequest),
            f"/{_OIP}/ModelMetadata": (self._model_metadata, oip.ModelRequest),
            f"/{_OIP}/ModelInfer": (self._infer, oip.ModelInferRequest),
        }

    # TensorFlow Serving.

    async def _predict(self, raw: bytes, context: Any) -> Any:
        if (answer := self._quick(raw)) is not None:
            return answer
        request = _parsed(tfs.PredictRequest, raw)
        batcher = self._of_spec(request.model_spec)
        tensors = batcher.runner.bundle.inputs
        given = dict(request.inputs)
        if given.keys() != batcher.names:
            input_checks.missing(tensors, list(given))
        inputs = {tensor.name: grpc_tensors.of_tfs(tensor, given[tensor.name]) for tensor in tensors}
        outputs = await self._compute(batcher, inputs, context, "grpc")
        if (frame := grpc_fast_path.frame(raw, request, tensors)) is not None:
            if len(self._frames) >= MOST_FRAMES:
                self._frames.clear()
            self._frames[len(raw)] = frame
        if len(request.output_filter):
            outputs = {name: _output(outputs, name) for name in request.output_filter}
        spec = self._spec(batcher)
        if (written := grpc_fast_path.response(outputs, spec)) is not None:
            return written
        answer = tfs.PredictResponse.FromString(spec)
        for name, array in outputs.items():
            grpc_tensors.to_tfs(array, answer.outputs[name])
        return answer

    def _quick(self, raw: bytes) -> bytes | None:
        """The response to a request with a known frame, if the model is fast enough to compute it right away."""
        frame = self._frames.get(len(raw))
        if frame is None or (content := frame.content(raw)) is None:
            return None
        began = time.perf_counter()
        batcher = self._models.find(frame.model, frame.version)
        tensor = batcher.runner.bundle.inputs[0]
        if tensor is not frame.tensor:
            del self._frames[len(raw)]  # another version is loaded
            return None
        array = np.frombuffer(content, tensor.dtype).reshape(frame.shape)
        outputs = batcher.at_once({tensor.name: array}, frame.shape[0])
        written = grpc_fast_path.response(outputs, self._spec(batcher)) if outputs is not None else None
        if written is not None:
            self._counting(frame.model, "grpc").add(0, time.perf_counter() - began)
        return written

    def _spec(self, batcher: Batcher) -> bytes:
        bundle = batcher.runner.bundle
        key = (bundle.name, bundle.version)
        spec = self._specs.get(key)
        if spec is None:
            spec = self._specs[key] = grpc_fast_path.spec(*key, tfs_rest.SIGNATURE)
        return spec

    def _counting(self, model: str, protocol: str) -> RequestCounters:
        counting = self._countings.get((model, protocol))
        if counting is None:
            counting = self._countings[model, protocol] = RequestCounters(self._numbers, model, protocol)
        return counting

    async def _classify(self, request: Any, context: Any) -> Any:
        batcher = self._of_spec(request.model_spec)
        outputs = await self._examples(batcher, request, context)
        answer = tfs.ClassificationResponse()
        answer.result.SetInParent()
        for row in tfs_rest.classes(batcher.runner.bundle, outputs):
            classes = answer.result.classifications.add().classes
            for label, score in row:
                classes.add(label=label, score=score)
        _fill_spec(answer.model_spec, batcher, tfs_rest.SIGNATURE)
        return answer

    async def _regress(self, request: Any, context: Any) -> Any:
        batcher = self._of_spec(request.model_spec)
        outputs = await self._examples(batcher, request, context)
        answer = tfs.RegressionResponse()
        answer.result.SetInParent()
        for value in tfs_rest.values(batcher.runner.bundle, outputs):
            answer.result.regressions.add(value=value)
        _fill_spec(answer.model_spec, batcher, tfs_rest.SIGNATURE)
        return answer

    async def _examples(self, batcher: Batcher, request: Any, context: Any) -> Outputs:
        inputs = grpc_tensors.of_examples(batcher.runner.bundle.inputs, request.input)
        return await self._compute(batcher, inputs, context, "grpc")

    async def _metadata(self, request: Any, context: Any) -> Any:
        if list(request.metadata_field) != ["signature_def"]:
            raise invalid('metadata_field must be ["signature_def"]')
        batcher = self._of_spec(request.model_spec)
        bundle = batcher.runner.bundle
        signatures = tfs.SignatureDefMap()
        definition = signatures.signature_def[tfs_rest.SIGNATURE]
        for tensor in bundle.inputs:
            grpc_tensors.describe(tensor, definition.inputs[tensor.name])
        for tensor in bundle.outputs:
            grpc_tensors.describe(tensor, definition.outputs[tensor.name])
        definition.method_name = tfs_rest.PREDICT_METHOD
        answer = tfs.GetModelMetadataResponse()
        _fill_spec(answer.model_spec, batcher, "")
        answer.metadata["signature_def"].type_url = SIGNATURE_MAP
        answer.metadata["signature_def"].value = signatures.SerializeToString()
        return answer

    async def _status(self, request: Any, context: Any) -> Any:
        model = self._models.model(request.model_spec.name)
        only = request.model_spec.version.value if request.model_spec.HasField("version") else None
        answer = tfs.GetModelStatusResponse()
        for version in model.status():
            if only in (None, version.number):
                one = answer.model_version_status.add(version=version.number, state=version.state.value)
                one.status.error_code = UNKNOWN if version.error else 0
                one.status.error_message = version.error
        if not answer.model_version_status:
            raise RequestRefused(RefusalReason.NOT_FOUND, f"Could not find version {only} of model {model.name}")
        return answer

    def _of_spec(self, spec: Any) -> Batcher:
        if spec.signature_name not in ("", tfs_rest.SIGNATURE):
            raise invalid(f'Serving signature key "{spec.signature_name}" not found.; there is {tfs_rest.SIGNATURE!r}')
        if spec.version_label:
            raise invalid("version labels are not supported: use the version number")
        return self._models.find(spec.name, spec.version.value if spec.HasField("version") else None)

    # The Open Inference Protocol.

    async def _live(self, request: Any, context: Any) -> Any:
        return oip.ServerLiveResponse(live=True)

    async def _ready(self, request: Any, context: Any) -> Any:
        return oip.ServerReadyResponse(ready=self._models.ready)

    async def _server_metadata(self, request: Any, context: Any) -> Any:
        return oip.ServerMetadataResponse(name="longboat", version=__version__, extensions=EXTENSIONS)

    async def _model_ready(self, request: Any, context: Any) -> Any:
        try:
            self._of_name(request.name, request.version)
        except RequestRefused as refused:
            if refused.reason not in (RefusalReason.NOT_FOUND, RefusalReason.UNAVAILABLE):
                raise
            return oip.ModelReadyResponse(ready=False)
        return oip.ModelReadyResponse(ready=True)

    async def _model_metadata(self, request: Any, context: Any) -> Any:
        bundle = self._of_name(request.name, request.version).runner.bundle
        versions = [str(version.number) for version in self._models.model(request.name).available()]
        answer = oip.ModelMetadataResponse(name=request.name, versions=versions, platform="onnxruntime_onnx")
        for tensors, described in ((bundle.inputs, answer.inputs), (bundle.outputs, answer.outputs)):
            for tensor in tensors:
                shape = [-1 if length is None else length for length in tensor.shape]
                described.add(name=tensor.name, datatype=BY_NAME[tensor.dtype].oip, shape=shape)
        return answer

    async def _infer(self, request: Any, context: Any) -> Any:
        batcher = self._of_name(request.model_name, request.model_version)
        bundle = batcher.runner.bundle
        inputs = grpc_tensors.of_oip(bundle.inputs, request)
        wait = request.parameters["timeout"].int64_param / 1e6 if "timeout" in request.parameters else 0.0
        outputs = await self._compute(batcher, inputs, context, "grpc-v2", wait)
        answer = oip.ModelInferResponse(model_name=bundle.name, model_version=str(bundle.version), id=request.id)
        for name in [output.name for output in request.outputs] or outputs:
            grpc_tensors.to_oip(name, _output(outputs, name), answer)
        return answer

    def _of_name(self, name: str, version: str) -> Batcher:
        if version and not (version.isdecimal() and len(version) < 19):
            raise invalid(f"{version[:40]!r} is not a version number")
        return self._models.find(name, int(version) if version else None)

    # Common to both.

    async def _compute(
        self, batcher: Batcher, inputs: Outputs, context: Any, protocol: str, wait: float = 0.0
    ) -> Outputs:
        began = time.perf_counter()
        counting = self._counting(batcher.runner.bundle.name, protocol)
        rows = len(next(iter(inputs.values()))) if len(inputs) == 1 else input_checks.rows_of(inputs)
        code = 0
        try:
            if (outputs := batcher.at_once(inputs, rows)) is not None:
                return outputs
            left = context.time_remaining()
            if left is not None and (not wait or left < wait):
                wait = left
            return await batcher.ask(inputs, rows, time.monotonic() + wait if wait else 0.0)
        except RequestRefused as refused:
            code = refused.reason.grpc
            raise
        except asyncio.CancelledError:
            code = 1
            raise
        finally:
            counting.add(code, time.perf_counter() - began)


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds handlers by full method name."""

    def __init__(self, methods: dict[str, tuple[Callable[[Any, Any], Awaitable[Any]], Any]]) -> None:
        self._handlers = {
            path: grpc.unary_unary_rpc_method_handler(_with_status(path, method, kind), None, _bytes)
            for path, (method, kind) in methods.items()
        }

    def service(self, details: Any) -> Any:
        return self._handlers.get(details.method)


def _parsed(kind: Any, raw: bytes) -> Any:
    """Parse a request. gRPC would report errors of its own deserializer as internal errors."""
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise invalid("the request is not a valid message of this method") from None


def _bytes(answer: Any) -> bytes:
    if type(answer) is bytes:
        return answer
    content: bytes = answer.SerializeToString()
    return content


def _with_status(
    path: str, method: Callable[[Any, Any], Awaitable[Any]], kind: Any
) -> Callable[[Any, Any], Awaitable[Any]]:
    """Parse the request, and turn a RequestRefused into the status of the call."""

    async def call(raw: bytes, context: Any) -> Any:
        try:
            return await method(raw if kind is None else _parsed(kind, raw), context)
        except RequestRefused as error:
            refused = error
        except Exception as error:
            refused = unforeseen(error)
        log_refusal(path, str(dict(context.invocation_metadata() or ()).get("x-request-id", "")), refused)
        return await context.abort(CODES[refused.reason.grpc], refused.message)

    return call


class _Guard(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Check the token."""

    def __init__(self, token: str) -> None:
        self._wanted = f"Bearer {token}"
        self._refusal = grpc.unary_unary_rpc_method_handler(self._refuse)

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        given = dict(details.invocation_metadata).get("authorization", "")
        text = given if isinstance(given, str) else given.decode("latin-1")
        if details.method in OPEN or hmac.compare_digest(text.encode(), self._wanted.encode()):
            return await continuation(details)
        return self._refusal

    async def _refuse(self, request: Any, context: Any) -> None:
        words = "a token is needed: send the metadata `authorization: Bearer TOKEN`"
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, words)


def _output(outputs: Outputs, name: str) -> np.ndarray[Any, Any]:
    if name not in outputs:
        raise invalid(f"the model has no output {name!r}; it has {', '.join(outputs)}")
    return outputs[name]


def _fill_spec(spec: Any, batcher: Batcher, signature_name: str) -> None:
    bundle = batcher.runner.bundle
    spec.name = bundle.name
    spec.version.value = bundle.version
    spec.signature_name = signature_name
