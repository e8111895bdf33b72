"""Batches requests. Each loaded version has one batcher, which runs on the event loop.

Requests that arrive while a batch is computed form the next batch: under load batches grow, and a single request does
not wait. A fast model is computed on the loop, at the end of the iteration in which its requests came; a slower one is
computed in a thread, so that the loop keeps reading.

With `wait`, an idle model also waits for more requests, at most that long, and only if it has recently seen several at
once. With `bound`, batches stay small enough to meet the latency bound, and a request that cannot be answered in time
is refused at once; an idle model always accepts it. The queue is bounded in any case. Requests whose client is gone or
whose deadline has passed are not computed.

Nothing here knows HTTP, gRPC or JSON; results go to each item's callback.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from longboat.runtime import debug_log
from longboat.runtime.light_dataclasses import dataclass, field, replace
from longboat.serve.model_loading import Runner, failure
from longboat.serve.request_errors import RefusalReason, RequestRefused

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
    Done = Callable[[dict[str, Array] | None, RequestRefused | None], None]

INLINE = 0.001
"""Seconds: faster batches are computed on the loop, because a thread would cost more."""
AT_ONCE = 0.0001
"""Seconds: faster requests are answered without waking a coroutine."""
FORGET = 0.9
"""Decay per batch of the number of concurrent requests seen."""
TYPICAL, CAUTIOUS = (0.2, 0.05), (0.02, 0.3)
"""How far a measurement moves the estimate of a batch's time: down by this share of the difference, up by at most this
share of the estimate. TYPICAL estimates the undisturbed time and decides between loop and thread; CAUTIOUS includes
disturbances and decides whether a latency bound can be met."""
SIZES = 24
"""Number of batch sizes that are counted, by powers of two."""


@dataclass(frozen=True)
class BatchLimits:
    """Batching options of the operator."""

    rows: int = 64
    """Maximum rows of a batch; a larger request is computed alone."""
    wait: float = 0.0
    """Seconds that an idle model waits for more requests."""
    queue: int = 1024
    """Maximum rows in the queue."""
    bound: float = 0.0
    """Latency bound in seconds, from arrival to response; 0: none."""
    timeout: float = 60.0
    """Seconds after which a queued request fails."""


@dataclass
class BatchItem:
    """One queued request."""

    inputs: dict[str, Array]
    rows: int
    done: Done
    deadline: float
    arrived: float
    shape: Any
    gone: bool = False


@dataclass
class BatchCosts:
    """Estimated time of a batch, for each power of two of rows."""

    down: float = TYPICAL[0]
    up: float = TYPICAL[1]
    seconds: dict[int, float] = field(default_factory=dict)

    def learn(self, rows: int, took: float) -> None:
        size = (rows - 1).bit_length()
        known = self.seconds.get(size)
        if known is None:
            self.seconds[size] = took
        elif took < known:
            self.seconds[size] = known - self.down * (known - took)
        else:
            self.seconds[size] = known + min(took - known, self.up * known)

    def of(self, rows: int) -> float:
        """Expected seconds of a batch; for a new size, extrapolated from the nearest one."""
        size = (rows - 1).bit_length()
        if size in self.seconds:
            return self.seconds[size]
        if not self.seconds:
            return 0.0
        near = min(self.seconds, key=lambda known: abs(known - size))
        return self.seconds[near] * (2.0 ** max(0, size - near))


class Batcher:
    def __init__(self, runner: Runner, limits: BatchLimits, loop: asyncio.AbstractEventLoop) -> None:
        self.runner, self.limits, self.costs, self.slow_costs = runner, limits, BatchCosts(), BatchCosts(*CAUTIOUS)
        self.costs.learn(1, runner.seconds)
        self.slow_costs.learn(1, runner.seconds)
        self.waiting = 0
        """Rows in the queue."""
        self._sizes = [0] * SIZES
        self._rows = 0
        explainer = runner.explainer
        self.explainer = None if explainer is None else Batcher(explainer, replace(limits, bound=0.0), loop)
        """Batches explanations: with a queue and a thread of its own, so that predictions do not wait for them, and
        without the latency bound, which is meant for predictions."""
        self.names = {tensor.name for tensor in runner.bundle.inputs}
        self._loop = loop
        self._queue: deque[BatchItem] = deque()
        self._batchable = all(t.shape[0] is None for t in (*runner.bundle.inputs, *runner.bundle.outputs))
        self._single = len(runner.bundle.inputs) == 1
        self._busy = self._called = False
        self._timer: asyncio.TimerHandle | None = None
        self._crowd = 1.0
        """How many requests were recently queued at once."""
        self._began = 0.0
        self._computing = 1
        """Rows of the current batch."""
        self._thread: ThreadPoolExecutor | None = None

    @property
    def working(self) -> bool:
        return self._busy or bool(self._queue)

    @property
    def in_use(self) -> bool:
        """Whether a prediction or an explanation is unanswered."""
        return self.working or (self.explainer is not None and self.explainer.working)

    def take_counts(self) -> tuple[list[int], int]:
        """Return and reset the counts: batches by power of two of their rows, and rows."""
        counts = self._sizes, self._rows
        self._sizes, self._rows = [0] * SIZES, 0
        return counts

    def submit(self, inputs: dict[str, Array], rows: int, done: Done, deadline: float = 0.0) -> BatchItem:
        """Queue a request, or raise RequestRefused. `done` is called once on the loop, unless the item is cancelled."""
        now = self.admit(rows)
        limits = self.limits
        until = now + limits.timeout
        work = BatchItem(
            inputs, rows, done, min(until, deadline) if deadline else until, now, _shape(inputs, self._single)
        )
        self._queue.append(work)
        self.waiting += rows
        if not self._busy and not self._called:
            self._arrange()
        return work

    def admit(self, rows: int = 1) -> float:
        """Raise RequestRefused if the queue is full for this many rows, else return the time.

        Protocols call it before they read a body, so that an overload is cheap to refuse."""
        now = time.monotonic()
        limits, name = self.limits, self.runner.bundle.name
        if self.waiting and self.waiting + rows > limits.queue:
            raise RequestRefused(
                RefusalReason.BUSY, f"the queue of model {name!r} is full: {self.waiting} rows are waiting"
            )
        if limits.bound and self.working and self._expected(rows, now) > limits.bound:
            raise self._late()
        return now

    def _late(self) -> RequestRefused:
        bound = self.limits.bound * 1000
        return RequestRefused(
            RefusalReason.BUSY,
            f"model {self.runner.bundle.name!r} cannot answer within its latency bound of {bound:g} ms",
        )

    def at_once(self, inputs: dict[str, Array], rows: int) -> dict[str, Array] | None:
        """The outputs of an idle, very fast model, computed right away; None: use `ask`.

        For gRPC, where waking a coroutine costs more than such a model."""
        if self._busy or self._queue or self.costs.of(rows) > AT_ONCE:
            return None
        began = time.perf_counter()
        try:
            outputs = self.runner.run(inputs)
        except Exception as error:
            raise failure(error, self.runner.bundle.name) from None
        self._count(rows, time.perf_counter() - began)
        return outputs

    async def ask(self, inputs: dict[str, Array], rows: int, deadline: float = 0.0) -> dict[str, Array]:
        """Queue a request and await its outputs. Cancelling the coroutine cancels the request."""
        answer: asyncio.Future[dict[str, Array]] = self._loop.create_future()

        def done(outputs: dict[str, Array] | None, refused: RequestRefused | None) -> None:
            if answer.done():
                return
            if refused is not None:
                answer.set_exception(refused)
            elif outputs is not None:
                answer.set_result(outputs)

        work = self.submit(inputs, rows, done, deadline)
        try:
            return await answer
        except asyncio.CancelledError:
            work.gone = True
            raise

    def cancel(self, work: BatchItem) -> None:
        """Skip the item, because its client is gone."""
        work.gone = True

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False)
        if self.explainer is not None:
            self.explainer.close()

    def _expected(self, rows: int, now: float) -> float:
        """Expected seconds until a new request of this many rows is answered."""
        costs, most = self.slow_costs, self._most()
        left = max(0.0, costs.of(self._computing) - (now - self._began)) if self._busy else 0.0
        full, rest = divmod(self.waiting + rows, most)
        return left + full * costs.of(most) + (costs.of(rest) if rest else 0.0)

    def _most(self) -> int:
        """Maximum rows of a batch: the operator's limit, or fewer, so that a request that just missed a batch meets
        the latency bound after that batch and its own."""
        most = self.limits.rows
        if self.limits.bound:
            while most > 1 and 2 * self.slow_costs.of(most) > self.limits.bound:
                most //= 2
        return most

    def _arrange(self) -> None:
        """Schedule the next batch: at the end of this loop iteration, or after waiting for more requests."""
        wait = self.limits.wait
        if wait and self.waiting < self._most() and len(self._queue) < round(self._crowd):
            if self._timer is None:
                left = wait - (time.monotonic() - self._queue[0].arrived)
                self._timer = self._loop.call_later(max(0.0, left), self._turn)
            return
        self._called = True
        self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._called = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._busy:
            return
        batch, rows = self._take()
        if not batch:
            return
        seen = len(batch) + len(self._queue)
        self._crowd = max(float(seen), self._crowd * FORGET)
        if self.costs.of(rows) < INLINE:
            began = time.perf_counter()
            answers = _answers(self.runner, batch)
            self._finish(batch, answers, rows, time.perf_counter() - began)
            return
        self._busy, self._began, self._computing = True, time.monotonic(), rows
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="longboat-model")
        self._thread.submit(self._away, batch, rows)

    def _away(self, batch: list[BatchItem], rows: int) -> None:
        """Compute a batch in the thread."""
        began = time.perf_counter()
        answers = _answers(self.runner, batch)
        took = time.perf_counter() - began
        try:
            self._loop.call_soon_threadsafe(self._back, batch, answers, rows, took)
        except RuntimeError:
            pass  # the loop is closed

    def _back(self, batch: list[BatchItem], answers: list[Any], rows: int, took: float) -> None:
        self._busy = False
        self._finish(batch, answers, rows, took)

    def _finish(self, batch: list[BatchItem], answers: list[Any], rows: int, took: float) -> None:
        self._count(rows, took)
        for work, answer in zip(batch, answers, strict=True):
            if work.gone:
                continue
            if isinstance(answer, RequestRefused):
                work.done(None, answer)
            else:
                work.done(answer, None)
        if self._queue:
            self._arrange()

    def _count(self, rows: int, took: float) -> None:
        debug_log.debug("%s: batch of %d rows in %.6f s", self.runner.bundle.name, rows, took)
        self.costs.learn(rows, took)
        if self.limits.bound:
            self.slow_costs.learn(rows, took)
        self._sizes[min((rows - 1).bit_length(), SIZES - 1)] += 1
        self._rows += rows

    def _take(self) -> tuple[list[BatchItem], int]:
        """The next batch: the oldest request and the following ones with its shape, as many as fit."""
        batch: list[BatchItem] = []
        rows, most, now = 0, self._most(), time.monotonic()
        queue = self._queue
        oldest = (
            now - self.limits.bound + self.slow_costs.of(min(most, max(1, self.waiting))) if self.limits.bound else 0.0
        )
        while queue:
            work = queue[0]
            if work.gone or work.deadline < now or (work.arrived < oldest and len(queue) > 1):
                queue.popleft()
                self.waiting -= work.rows
                if not work.gone:
                    late = RequestRefused(RefusalReason.DEADLINE, "the deadline passed while the request was queued")
                    work.done(None, late if work.deadline < now else self._late())
                continue
            if batch and (not self._batchable or rows + work.rows > most or work.shape != batch[0].shape):
                break
            queue.popleft()
            self.waiting -= work.rows
            batch.append(work)
            rows += work.rows
        return batch, rows


def _shape(inputs: dict[str, Array], single: bool) -> Any:
    """Key that two requests must share to be in one batch."""
    if single:
        (array,) = inputs.values()
        return array.shape[1:]
    return tuple(array.shape[1:] for _, array in sorted(inputs.items()))


def _answers(runner: Runner, batch: list[BatchItem]) -> list[Any]:
    """Outputs or a RequestRefused for each item. If a batch fails, each item is computed alone, so that one client's
    input cannot fail the others."""
    try:
        if len(batch) == 1:
            return [runner.run(batch[0].inputs)]
        return _split(runner.run(_joined(batch)), batch)
    except Exception as error:
        if len(batch) == 1:
            return [failure(error, runner.bundle.name)]
    return [_answers(runner, [work])[0] for work in batch]


def _joined(batch: list[BatchItem]) -> dict[str, Array]:
    import numpy as np

    return {name: np.concatenate([work.inputs[name] for work in batch]) for name in batch[0].inputs}


def _split(outputs: dict[str, Array], batch: list[BatchItem]) -> list[dict[str, Array]]:
    total = sum(work.rows for work in batch)
    for name, array in outputs.items():
        if len(array) != total:
            raise RuntimeError(f"output {name!r} has {len(array)} rows for {total}")
    parts, at = [], 0
    for work in batch:
        parts.append({name: array[at : at + work.rows] for name, array in outputs.items()})
        at += work.rows
    return parts
