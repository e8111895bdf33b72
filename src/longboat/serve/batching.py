"""Requests become batches. One batcher stands before each loaded version; it lives on the event loop.

What arrives while a batch is computed is the next batch: under load batches grow by themselves, and a lone request
waits for nobody. A small model is computed on the loop itself, at the end of the turn in which its requests came; one
that takes longer is computed in a thread, so that the loop goes on reading.

With `wait`, an idle model also waits for company, at most so long, and not for clients that it has not seen lately.
With `bound`, no batch is made larger than what leaves room for it, and a request that could not be answered in time
is refused at once instead of late; an idle model takes it always. The queue is bounded either way. A request whose
client is gone or whose deadline has passed is not computed.

Nothing of HTTP, gRPC or JSON here; answers go to the callback that came with the work.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from longboat.serve.model_loading import Runner, failure
from longboat.serve.request_errors import RefusalReason, RequestRefused

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
    Done = Callable[[dict[str, Array] | None, RequestRefused | None], None]

INLINE = 0.001
"""Seconds: a batch that takes less is computed on the loop, where a thread would cost more than it gives."""
AT_ONCE = 0.0001
"""Seconds: a request that takes less is not worth a coroutine's wait."""
FORGET = 0.9
"""What is kept of the memory of how many clients ask at once, a batch."""
TYPICAL, CAUTIOUS = (0.2, 0.05), (0.02, 0.3)
"""How far a measurement moves what is known of a batch's time: down that share of the way, up that share of what is
known at most. What a batch takes undisturbed decides where it is computed; whether a bound can be kept is decided by
what it takes with all that goes on beside it."""
SIZES = 24
"""Powers of two of rows by which batches are counted."""


@dataclass(frozen=True)
class BatchLimits:
    """What an operator may say about batches."""

    rows: int = 64
    """The most rows computed at once; a larger request is computed alone."""
    wait: float = 0.0
    """Seconds that an idle model waits for company."""
    queue: int = 1024
    """The most rows that may wait."""
    bound: float = 0.0
    """Seconds from arrival to answer; 0: no bound."""
    timeout: float = 60.0
    """Seconds after which a waiting request is given up."""


@dataclass(slots=True)
class BatchItem:
    """One request on its way."""

    inputs: dict[str, Array]
    rows: int
    done: Done
    deadline: float
    arrived: float
    shape: Any
    gone: bool = False


@dataclass
class BatchCosts:
    """How long batches take, learned for each power of two of rows."""

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
        """The expected seconds of a batch; of one never seen, in proportion to the nearest."""
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
        self.idle: Callable[[], None] | None = None
        """Called when the last work is done, for whoever waits to unload the model."""
        self.names = {tensor.name for tensor in runner.bundle.inputs}
        self._loop = loop
        self._queue: deque[BatchItem] = deque()
        self._batchable = all(t.shape[0] is None for t in (*runner.bundle.inputs, *runner.bundle.outputs))
        self._single = len(runner.bundle.inputs) == 1
        self._busy = self._called = False
        self._timer: asyncio.TimerHandle | None = None
        self._crowd = 1.0
        """How many requests have lately stood in line at once."""
        self._began = 0.0
        self._computing = 1
        """Rows of the batch that is being computed."""
        self._thread: ThreadPoolExecutor | None = None

    @property
    def working(self) -> bool:
        return self._busy or bool(self._queue)

    def take_counts(self) -> tuple[list[int], int]:
        """What was computed since the last time: batches by the power of two of their rows, and rows."""
        found = self._sizes, self._rows
        self._sizes, self._rows = [0] * SIZES, 0
        return found

    def submit(self, inputs: dict[str, Array], rows: int, done: Done, deadline: float = 0.0) -> BatchItem:
        """Queues a request, or raises Refused. `done` is called on the loop, once, unless the work is cancelled."""
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
        """Raises Refused if there is no room for so many rows; the time. Protocols ask before they read a body: a flood
        is turned away for the price of a look."""
        now = time.monotonic()
        limits, name = self.limits, self.runner.bundle.name
        if self.waiting and self.waiting + rows > limits.queue:
            raise RequestRefused(RefusalReason.BUSY, f"{self.waiting} rows wait for model {name!r} already")
        if limits.bound and self.working and self._expected(rows, now) > limits.bound:
            raise self._late()
        return now

    def _late(self) -> RequestRefused:
        bound = self.limits.bound * 1000
        return RequestRefused(
            RefusalReason.BUSY, f"model {self.runner.bundle.name!r} could not answer within its bound of {bound:g} ms"
        )

    def at_once(self, inputs: dict[str, Array], rows: int) -> dict[str, Array] | None:
        """The answer of a model so quick that company would not make it quicker; None: ask. For gRPC, where waking a
        coroutine costs more than the model does."""
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
        """The same for a coroutine: when it is cancelled, so is the work."""
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
        """The client is gone: the work is skipped when its turn comes."""
        work.gone = True

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    def _expected(self, rows: int, now: float) -> float:
        """Seconds until a request of so many rows would be answered."""
        costs, most = self.slow_costs, self._most()
        left = max(0.0, costs.of(self._computing) - (now - self._began)) if self._busy else 0.0
        full, rest = divmod(self.waiting + rows, most)
        return left + full * costs.of(most) + (costs.of(rest) if rest else 0.0)

    def _most(self) -> int:
        """The most rows of a batch: as the operator said, or fewer, so that a request that just missed one batch and
        must wait for it and then for its own is still answered within the bound."""
        most = self.limits.rows
        if self.limits.bound:
            while most > 1 and 2 * self.slow_costs.of(most) > self.limits.bound:
                most //= 2
        return most

    def _arrange(self) -> None:
        """Decides when the next batch is made: at the end of this turn of the loop, or when company has come."""
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
            if self.idle is not None and not self._queue:
                self.idle()
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
        """In the thread."""
        began = time.perf_counter()
        answers = _answers(self.runner, batch)
        took = time.perf_counter() - began
        try:
            self._loop.call_soon_threadsafe(self._back, batch, answers, rows, took)
        except RuntimeError:
            pass  # the loop has closed: nobody waits for this any more

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
        elif self.idle is not None:
            self.idle()

    def _count(self, rows: int, took: float) -> None:
        self.costs.learn(rows, took)
        if self.limits.bound:
            self.slow_costs.learn(rows, took)
        self._sizes[min((rows - 1).bit_length(), SIZES - 1)] += 1
        self._rows += rows

    def _take(self) -> tuple[list[BatchItem], int]:
        """The next batch: the oldest request and those of its shape behind it, as many as fit."""
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
                    late = RequestRefused(RefusalReason.DEADLINE, "the deadline passed before the model was free")
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
    """What must agree for two requests to share a batch."""
    if single:
        (array,) = inputs.values()
        return array.shape[1:]
    return tuple(array.shape[1:] for _, array in sorted(inputs.items()))


def _answers(runner: Runner, batch: list[BatchItem]) -> list[Any]:
    """An answer or a Refused for each work. When a batch of several fails, each is computed alone: one client's
    input, or its size, must not fail the others."""
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
    found, at = [], 0
    for work in batch:
        found.append({name: array[at : at + work.rows] for name, array in outputs.items()})
        at += work.rows
    return found
