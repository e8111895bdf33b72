"""Load test: sends many requests to one model, measures latencies and compares with labels.

The `bench` command and `bench:` stages call `run`. Before the measurement starts, the signature is known and all
requests are encoded. During the test nothing is printed, and only what is needed is decoded.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from time import perf_counter

from longboat.runtime.errors import LongboatError
from longboat.runtime.light_dataclasses import dataclass
from longboat.serve.client import example_files, http_codecs, model_requests, rows, schedule
from longboat.serve.client.counters import LATE, LoadCounters, SentBatch
from longboat.serve.client.model_signature import Signature
from longboat.serve.client.report import Iteration, LoadReport
from longboat.serve.client.rows import Examples
from longboat.serve.client.target import Target

MOST_ROWS = 100_000
"""Rows to read for a test with a time limit."""
OPEN_CONNECTIONS = 64
"""Default number of connections with a rate."""

NO_USE = ("refused", "no connection")
"""Failures after which a connection pauses for PAUSE seconds."""
PAUSE = 0.05


@dataclass(frozen=True)
class LoadSettings:
    """Settings of a load test, named like the command line options."""

    data_file: str
    batch_size: int = 1
    num_iteration: int = 40
    warm_up_iteration: int = 10
    concurrency: int = 0
    """Connections; 0: one, or OPEN_CONNECTIONS with a rate."""
    rate: float = 0.0
    """Requests per second, at fixed times; 0: each one after the previous response."""
    duration: float = 0.0
    """Duration in seconds instead of a number of iterations; 0: count iterations."""
    label: str = ""
    signature: str = ""
    output: str = ""
    labels: tuple[str, ...] = ()
    empty: float = math.nan
    """Value for empty cells of a table."""
    timeout: float = 30.0

    @property
    def connections(self) -> int:
        return self.concurrency or (OPEN_CONNECTIONS if self.rate else 1)

    def check(self) -> None:
        """Raise if the settings cannot measure anything."""
        n, w = self.num_iteration, self.warm_up_iteration
        if self.batch_size < 1:
            raise LongboatError(f"--batch_size {self.batch_size}: it must be at least 1")
        if w < 0 or n < 1:
            raise LongboatError("--num_iteration must be at least 1 and --warm_up_iteration at least 0")
        if not self.duration and n <= w:
            raise LongboatError(
                f"all {n} iterations are warm-up (--warm_up_iteration {w}): nothing is left to measure",
                f"use more iterations: --num_iteration {w + 30}, or less warm-up: --warm_up_iteration 0",
            )
        for name, value in (("rate", self.rate), ("duration", self.duration)):
            if value < 0 or not math.isfinite(value):
                raise LongboatError(f"--{name} {value:g} is not valid")
        if self.concurrency < 0:
            raise LongboatError(f"--concurrency {self.concurrency}: it must be at least 1")
        if self.timeout <= 0:
            raise LongboatError(f"--timeout {self.timeout:g}: it must be greater than 0")


def run(target: Target, settings: LoadSettings, on_iteration: Callable[[Iteration], None] | None = None) -> LoadReport:
    """Run the load test. `on_iteration` is called with every measured iteration."""
    settings.check()
    with asyncio.Runner(loop_factory=_loop()) as runner:
        return runner.run(_run(target, settings, on_iteration))


def _loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """Use uvloop if it is installed: it handles about twice as many requests."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


async def _run(target: Target, settings: LoadSettings, on_iteration: Callable[[Iteration], None] | None) -> LoadReport:
    target, signature = await model_requests.meet(target, settings.signature, settings.timeout)
    examples = _examples(settings, signature)
    codec = http_codecs.of(target, signature)
    requests, batches = _requests(examples, codec, settings)
    tally = LoadCounters(codec, settings.labels or signature.labels, settings.output, on_iteration)
    lines = [model_requests.channel(target, settings.timeout) for _ in range(settings.connections)]
    gang = _Gang(settings, requests, batches, tally, lines)
    interrupted = False
    try:
        await gang.work()
    except asyncio.CancelledError:
        interrupted = True  # report what has been measured
    finally:
        for line in lines:
            await line.close()
    if not interrupted:
        tally.never_sent(gang.left)
    return LoadReport(
        url=target.url,
        protocol=target.protocol,
        model=target.model,
        version=signature.version,
        data=settings.data_file,
        data_rows=len(examples.rows),
        batch_size=settings.batch_size,
        warm_up=settings.warm_up_iteration,
        concurrency=settings.connections,
        rate=settings.rate,
        seconds=gang.seconds,
        requests=tally.requests,
        succeeded=tally.succeeded,
        examples=tally.examples,
        correct=tally.correct if tally.labelled else None,
        labelled=tally.labelled,
        latency=tally.latency(),
        service=tally.service() if settings.rate else None,
        histogram=tally.histogram(),
        failures=tally.failures,
        iterations=tuple(sorted(tally.iterations, key=lambda each: each.number)),
        notes=(*examples.notes, *_notes(settings, examples, len(batches), tally)),
        interrupted=interrupted,
    )


def _examples(settings: LoadSettings, signature: Signature) -> Examples:
    limit = MOST_ROWS if settings.duration else settings.num_iteration * settings.batch_size
    records = example_files.read(settings.data_file, limit)
    return rows.fit(records, signature, settings.data_file, settings.label, settings.empty)


def _requests(
    examples: Examples, codec: http_codecs.Codec, settings: LoadSettings
) -> tuple[list[bytes], list[SentBatch]]:
    """The data in batches (the last one may be short), each as encoded request and as counted rows."""
    requests, batches = [], []
    for at in range(0, len(examples.rows), settings.batch_size):
        part = examples.rows[at : at + settings.batch_size]
        truths = examples.labels[at : at + settings.batch_size] if examples.labels else None
        requests.append(codec.encode(part))
        batches.append(SentBatch(len(part), truths))
    return requests, batches


@dataclass
class _Gang:
    """The connections of a running test."""

    settings: LoadSettings
    requests: Sequence[bytes]
    batches: Sequence[SentBatch]
    tally: LoadCounters
    lines: Sequence[model_requests.Channel]
    seconds: float = 0.0
    left: int = 0
    """Number of requests that were due but never sent, because earlier ones took too long."""

    async def work(self) -> None:
        settings = self.settings
        warm = settings.warm_up_iteration
        await self._phase(schedule.AtOnce(0, warm), measured=False)
        last = schedule.EVERYTHING if settings.duration else settings.num_iteration
        source: schedule.Schedule
        if settings.rate:
            source = schedule.AtRate(warm, last, settings.rate, settings.duration, settings.timeout)
        else:
            source = schedule.AtOnce(warm, last, settings.duration)
        began = perf_counter()
        try:
            await self._phase(source, measured=True)
        finally:
            source.close()
            self.seconds = perf_counter() - began
            self.left = source.left if isinstance(source, schedule.AtRate) else 0

    async def _phase(self, source: schedule.Schedule, measured: bool) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for line in self.lines:
                    group.create_task(self._worker(line, source, measured))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # a closed pipe, for example: callers expect it, and no group

    async def _worker(self, line: model_requests.Channel, source: schedule.Schedule, measured: bool) -> None:
        count = len(self.requests)
        while (ticket := await source.next()) is not None:
            number, due = ticket
            answer = await line.call(self.requests[number % count])
            if measured:
                self.tally.note(number, due, self.batches[number % count], answer)
            if answer.error in NO_USE:
                await asyncio.sleep(PAUSE)  # do not flood a server that fails at once


def _notes(settings: LoadSettings, examples: Examples, batches: int, tally: LoadCounters) -> list[str]:
    notes = []
    sent = settings.warm_up_iteration + tally.requests
    short = len(examples.rows) % settings.batch_size
    if sent > batches:
        notes.append(f"the data has only {len(examples.rows):,} rows: they were repeated after iteration {batches:,}")
    if short and sent >= batches:
        notes.append(f"the last batch of the data has {short} rows")
    if examples.labels is None:
        notes.append("no accuracy: the data has no labels (set the column with --label NAME)")
    elif not tally.labelled and tally.succeeded:
        notes.append("no accuracy: the model returns no class (choose an output with --output NAME)")
    elif tally.labelled and not tally.correct and any(isinstance(each, str) for each in examples.labels):
        notes.append("no label matched: if the labels are names and the model returns numbers, use --labels A,B")
    if settings.rate and tally.latest > LATE:
        notes.append(
            f"requests were sent up to {1000 * tally.latest:.0f} ms late: "
            f"all {settings.connections} connections were waiting for responses, or this machine was busy"
        )
    return notes
