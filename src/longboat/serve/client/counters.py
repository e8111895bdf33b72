"""Counts the results of a load test as they come, in bounded memory."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from longboat.runtime.errors import FAILED, LongboatError
from longboat.runtime.light_dataclasses import dataclass
from longboat.serve.client import predictions, report
from longboat.serve.client.example_files import Label
from longboat.serve.client.http_channel import ChannelResponse
from longboat.serve.client.http_codecs import Codec
from longboat.serve.client.report import Iteration, RequestFailure

KEPT = 10_000
"""Maximum number of single iterations to keep."""
LATE = 0.01
"""Seconds of delay in sending a request that are worth a note."""


@dataclass(frozen=True)
class SentBatch:
    """The rows of one request, as needed for counting."""

    size: int
    truths: Sequence[Label] | None


class LoadCounters:
    def __init__(
        self,
        codec: Codec,
        labels: tuple[str, ...],
        output: str = "",
        on_iteration: Callable[[Iteration], None] | None = None,
    ) -> None:
        self._codec, self._labels, self._output, self._on_iteration = codec, labels, output, on_iteration
        self.requests = self.succeeded = self.examples = self.correct = self.labelled = 0
        self.latencies, self.services = array("d"), array("d")
        self.iterations: list[Iteration] = []
        self._failures: dict[str, RequestFailure] = {}
        self.latest = 0.0
        """The longest delay in sending a request after it was due."""

    def note(self, number: int, due: float, batch: SentBatch, answer: ChannelResponse) -> None:
        """Count one response. due: when its request should have been sent; 0 without a rate."""
        service = answer.ended - answer.sent
        taken = answer.ended - (due or answer.sent)
        error, message, correct = answer.error, answer.detail, None
        if not error and batch.truths is not None:
            try:
                correct = self._judged(answer.body, batch.truths)
            except LongboatError as unreadable:
                error, message = "not understood", unreadable.message
        self.requests += 1
        self.latest = max(self.latest, taken - service)
        if error:
            before = self._failures.get(error, RequestFailure(error, 0, message))
            self._failures[error] = RequestFailure(error, before.count + 1, before.message)
        else:
            self.succeeded += 1
            self.examples += batch.size
        if correct is not None:
            self.correct += correct
            self.labelled += batch.size
        if not error or error == "timeout":
            self.latencies.append(taken)
            self.services.append(service)
        if self._on_iteration is not None or len(self.iterations) < KEPT:
            self._keep(Iteration(number + 1, taken, batch.size, correct, error))

    def never_sent(self, count: int) -> None:
        """Count requests that were due but never sent. They have no latency, but they are failures; otherwise a server
        that is far too slow would look better than it is."""
        if count:
            self.requests += count
            self._failures["never sent"] = RequestFailure(
                "never sent", count, "the server cannot keep up with this rate"
            )

    def _keep(self, iteration: Iteration) -> None:
        if len(self.iterations) < KEPT:
            self.iterations.append(iteration)
        if self._on_iteration is not None:
            self._on_iteration(iteration)

    def _judged(self, body: bytes, truths: Sequence[Label]) -> int | None:
        """Number of correct rows; None if the model returns no class."""
        columns = self._codec.decode(body)
        if self._output and self._output not in columns:
            raise LongboatError(f"the model has no output {self._output!r}: it has {', '.join(columns)}", code=FAILED)
        predicted = predictions.read(columns, self._labels, self._output, sure=False)
        if len(predicted) != len(truths):
            raise LongboatError(f"{len(predicted)} predictions came for {len(truths)} rows", code=FAILED)
        judged = [predictions.right(one, truth, self._labels) for one, truth in zip(predicted, truths, strict=True)]
        return None if None in judged else judged.count(True)

    @property
    def failures(self) -> tuple[RequestFailure, ...]:
        return tuple(self._failures[kind] for kind in sorted(self._failures))

    def latency(self) -> report.Latency | None:
        return report.latency(self.latencies)

    def service(self) -> report.Latency | None:
        return report.latency(self.services)

    def histogram(self) -> tuple[report.Bar, ...]:
        return report.histogram(self.latencies)
