"""Loads a bundle as a callable: an ONNX Runtime session between the two halves of its transform.

Nothing here knows requests, batches or versions. Inputs are already checked (`input_checks`); outputs are checked here,
because a transform is user code.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from longboat.runtime import bundle as bundles
from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import replace
from longboat.serve.request_errors import RefusalReason, RequestRefused, invalid

if TYPE_CHECKING:
    import numpy as np

    Arrays = Mapping[str, np.ndarray[Any, Any]]

ONE_THREAD = 4 << 20
"""Bytes: smaller models use one thread, because they finish before a second one wakes up."""
WARM_UP = 8
"""Warm-up calls before a model is ready: the first ones allocate memory."""
LONG = 0.1
"""Maximum seconds of warm-up calls."""


class Runner(Protocol):
    """Interface of a loaded model."""

    bundle: bundles.Bundle
    seconds: float
    """Seconds for one row, measured at loading."""

    @property
    def explainer(self) -> Runner | None:
        """Computes explanations instead of outputs; None if the model cannot explain."""

    def run(self, inputs: Arrays) -> dict[str, np.ndarray[Any, Any]]: ...


class OnnxRunner:
    """A bundle in ONNX Runtime."""

    def __init__(self, bundle: bundles.Bundle, threads: int = 0) -> None:
        import onnxruntime

        self.bundle = bundle
        self.seconds = 0.0
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what it would print is also raised
        options.intra_op_num_threads = threads or (1 if bundle.size < ONE_THREAD else len(os.sched_getaffinity(0)))
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = onnxruntime.InferenceSession(bundle.function, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise LongboatError(f"{bundle.function}: ONNX Runtime cannot load it: {_short(error)}") from None
        self._call = self._session.run
        self._transform = _transform(bundle)
        self._names = [output.name for output in bundle.outputs]
        self._own = [output.name for output in self._session.get_outputs()]
        if self._transform is None and (missing := set(self._names) - set(self._own)):
            raise LongboatError(f"{bundle.function} has no output {', '.join(sorted(missing))}")
        self._before = getattr(self._transform, "before", None)
        self._after = getattr(self._transform, "after", None)
        explains = hasattr(self._transform, "explain")
        self.explainer = ExplanationRunner(bundle, self._transform) if explains else None

    def run(self, inputs: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        """All outputs of the bundle for these rows."""
        if self._transform is None:
            return dict(zip(self._names, self._call(self._names, inputs), strict=True))
        inputs = _writable(inputs)
        feeds = self._before(inputs) if self._before else inputs
        outputs = dict(zip(self._own, self._call(None, feeds), strict=True))
        return self._checked(self._after(outputs, inputs) if self._after else outputs)

    def _checked(self, given: Any) -> dict[str, np.ndarray[Any, Any]]:
        import numpy as np

        outputs = {}
        for output in self.bundle.outputs:
            if output.name not in given:
                raise LongboatError(f"the transform of {self.bundle.name} returns no {output.name!r}")
            wanted = object if output.dtype == "string" else output.dtype
            outputs[output.name] = np.asarray(given[output.name], dtype=wanted)
        return outputs


class ExplanationRunner:
    """The `explain` of a bundle's transform as a model: for each row a list of [word or column, weight]."""

    explainer = None

    def __init__(self, bundle: bundles.Bundle, transform: Any) -> None:
        self.bundle, self._transform = bundle, transform
        self.seconds = 1.0  # not measured: too slow for the event loop until requests show otherwise

    def run(self, inputs: Arrays) -> dict[str, Any]:
        return {"explanations": list(self._transform.explain(_writable(inputs)))}


def _writable(inputs: Arrays) -> Arrays:
    """Arrays from the network may be read-only; a transform may write into them."""
    return {name: array if array.flags.writeable else array.copy() for name, array in inputs.items()}


def load(path: str, threads: int = 0, name: str = "") -> Runner:
    """Load the version in this directory, check its checksums and warm it up.

    Its name is `name` and its version the directory's number, whatever was saved in it."""
    bundle = bundles.read(path)
    number = os.path.basename(bundle.path)
    bundle = replace(bundle, name=name or bundle.name, version=int(number) if number.isdecimal() else bundle.version)
    runner = OnnxRunner(bundle, threads)
    warm(runner)
    return runner


def warm(runner: Runner) -> None:
    """Call the model with its own example, or with zeros; a model that fails on its example is broken."""
    import numpy as np

    try:
        inputs = _trial(runner.bundle)
        outputs = runner.run(inputs)
        times: list[float] = []
        while len(times) < WARM_UP and sum(times) < LONG:
            began = time.perf_counter()
            outputs = runner.run(inputs)
            times.append(time.perf_counter() - began)
        runner.seconds = min(times)
    except RequestRefused as refused:
        raise LongboatError(f"{runner.bundle.path}: its own example is not a valid input: {refused.message}") from None
    except Exception as error:
        if not runner.bundle.examples:
            return  # zeros may not be a valid input
        raise LongboatError(
            f"{runner.bundle.path}: the model fails on its own example: {type(error).__name__}: {_short(error)}"
        ) from None
    for output in runner.bundle.outputs:
        if np.ndim(outputs[output.name]) == 0:
            raise LongboatError(f"{runner.bundle.path}: output {output.name!r} has no batch dimension")


def failure(error: BaseException, name: str) -> RequestRefused:
    """The error for the client when the model raised an exception."""
    if isinstance(error, RequestRefused):
        return error
    message = _short(error)
    if isinstance(error, MemoryError) or "allocate memory" in message or "bad_alloc" in message:
        return RequestRefused(
            RefusalReason.MEMORY, f"model {name!r} ran out of memory on this batch: send fewer rows at a time"
        )
    if isinstance(error, (ValueError, TypeError, KeyError, IndexError, UnicodeError)):
        return invalid(f"model {name!r} rejected this input: {message}")
    if type(error).__module__.startswith("onnxruntime"):
        return invalid(f"model {name!r} cannot compute this input: {message}")
    return RequestRefused(RefusalReason.FAILED, f"model {name!r} failed: {type(error).__name__}: {message}")


def _trial(bundle: bundles.Bundle) -> dict[str, np.ndarray[Any, Any]]:
    import numpy as np

    from longboat.serve.input_checks import column

    inputs = {}
    for tensor in bundle.inputs:
        example = bundle.examples[0].inputs.get(tensor.name) if bundle.examples else None
        if example is not None:
            inputs[tensor.name] = column(tensor, [example])
        else:
            shape = [1 if length is None else length for length in tensor.shape]
            empty = "" if tensor.dtype == "string" else 0
            inputs[tensor.name] = np.full(shape, empty, dtype=object if tensor.dtype == "string" else tensor.dtype)
    return inputs


def _transform(bundle: bundles.Bundle) -> Any:
    """An instance of the bundle's class Transform, from a module with a unique name."""
    if not bundle.transform:
        return None
    path = os.path.join(bundle.path, bundle.transform)
    name = f"longboat_transform_{abs(hash(path)):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # do not write into a bundle
    try:
        spec.loader.exec_module(module)
        return module.Transform(bundle.path)
    except Exception as error:
        raise LongboatError(f"{path}: {type(error).__name__}: {_short(error)}") from None
    finally:
        sys.dont_write_bytecode = writes


def _short(error: BaseException) -> str:
    """The exception's message, shortened to one line."""
    message = " ".join(str(error).split()) or type(error).__name__
    return message if len(message) <= 300 else message[:299] + "…"
