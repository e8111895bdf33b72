"""A load test: many requests to one model, timed, counted and held against the labels.

`run` is what the command line and a job's `bench:` stage call. Before the clock starts, the
server has been asked what the model takes and every request is ready as bytes; while it runs,
nothing is printed here and nothing is decoded that need not be.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from longboat.runtime.errors import LongboatError
from longboat.serve.client import example_files, http_codecs, model_requests, rows, schedule
from longboat.serve.client.counters import LATE, LoadCounters, SentBatch
from longboat.serve.client.model_signature import Signature
from longboat.serve.client.report import Iteration, LoadReport
from longboat.serve.client.rows import Examples
from longboat.serve.client.target import Target

MOST_ROWS = 100_000
"""Rows that are read for a test that ends by the clock."""
OPEN_CONNECTIONS = 64
"""At a rate, so many requests may be under way at once, unless the caller says otherwise."""

NO_USE = ("refused", "no connection")
"""Failures after which a connection rests for PAUSE seconds."""
PAUSE = 0.05


@dataclass(frozen=True)
class LoadSettings:
    """What to do; the names are the command line's."""

    data_file: str
    batch_size: int = 1
    num_iteration: int = 40
    warm_up_iteration: int = 10
    concurrency: int = 0
    """Connections; 0: one, or OPEN_CONNECTIONS at a rate."""
    rate: float = 0.0
    """Requests a second, due at fixed times; 0: each when the one before has been answered."""
    duration: float = 0.0
    """Seconds, instead of a number of iterations; 0: count iterations."""
    label: str = ""
    signature: str = ""
    output: str = ""
    labels: tuple[str, ...] = ()
    empty: float = math.nan
    """What an empty cell of a table is sent as."""
    timeout: float = 30.0

    @property
    def connections(self) -> int:
        return self.concurrency or (OPEN_CONNECTIONS if self.rate else 1)

    def check(self) -> None:
        """Refuses what could measure nothing."""
        n, w = self.num_iteration, self.warm_up_iteration
        if self.batch_size < 1:
            raise LongboatError(f"--batch_size {self.batch_size}: a request has at least one row")
        if w < 0 or n < 1:
            raise LongboatError("--num_iteration is at least 1 and --warm_up_iteration at least 0")
        if not self.duration and n <= w:
            raise LongboatError(
                f"all {n} iterations would be warm-up (--warm_up_iteration {w}), so nothing would be measured",
                f"ask for more than the warm-up: --num_iteration {w + 30}, or warm up less: --warm_up_iteration 0",
            )
        for name, value in (("rate", self.rate), ("duration", self.duration)):
            if value < 0 or not math.isfinite(value):
                raise LongboatError(f"--{name} {value:g} is no sensible figure")
        if self.concurrency < 0:
            raise LongboatError(f"--concurrency {self.concurrency}: at least one connection is needed")
        if self.timeout <= 0:
            raise LongboatError(f"--timeout {self.timeout:g}: seconds, more than 0")


def run(target: Target, settings: LoadSettings, told: Callable[[Iteration], None] | None = None) -> LoadReport:
    """The whole test. `told` hears of every measured iteration as it ends."""
    settings.check()
    with asyncio.Runner(loop_factory=_loop()) as runner:
        return runner.run(_run(target, settings, told))


def _loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop where it is installed: it carries about twice the requests."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


async def _run(target: Target, settings: LoadSettings, told: Callable[[Iteration], None] | None) -> LoadReport:
    target, signature = await model_requests.meet(target, settings.signature, settings.timeout)
    examples = _examples(settings, signature)
    codec = http_codecs.of(target, signature)
    requests, batches = _requests(examples, codec, settings)
    tally = LoadCounters(codec, settings.labels or signature.labels, settings.output, told)
    lines = [model_requests.channel(target, settings.timeout) for _ in range(settings.connections)]
    gang = _Gang(settings, requests, batches, tally, lines)
    interrupted = False
    try:
        await gang.work()
    except asyncio.CancelledError:
        interrupted = True  # what has been measured is worth telling
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
    """The data cut into batches, the last one as short as it is; each as bytes to send, and as what is counted."""
    requests, batches = [], []
    for at in range(0, len(examples.rows), settings.batch_size):
        part = examples.rows[at : at + settings.batch_size]
        truths = examples.labels[at : at + settings.batch_size] if examples.labels else None
        requests.append(codec.encode(part))
        batches.append(SentBatch(len(part), truths))
    return requests, batches


@dataclass
class _Gang:
    """The connections at work."""

    settings: LoadSettings
    requests: Sequence[bytes]
    batches: Sequence[SentBatch]
    tally: LoadCounters
    lines: Sequence[model_requests.Channel]
    seconds: float = 0.0
    left: int = 0
    """Requests that were due and never sent, because those before them took too long."""

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
        async with asyncio.TaskGroup() as group:
            for line in self.lines:
                group.create_task(self._worker(line, source, measured))

    async def _worker(self, line: model_requests.Channel, source: schedule.Schedule, measured: bool) -> None:
        count = len(self.requests)
        while (ticket := await source.next()) is not None:
            number, due = ticket
            answer = await line.call(self.requests[number % count])
            if measured:
                self.tally.note(number, due, self.batches[number % count], answer)
            if answer.error in NO_USE:
                await asyncio.sleep(PAUSE)  # a server that is gone must not be asked as fast as it fails


def _notes(settings: LoadSettings, examples: Examples, batches: int, tally: LoadCounters) -> list[str]:
    notes = []
    sent = settings.warm_up_iteration + tally.requests
    short = len(examples.rows) % settings.batch_size
    if sent > batches:
        notes.append(
            f"the data has {len(examples.rows):,} rows: they were sent again from the start after iteration {batches:,}"
        )
    if short and sent >= batches:
        notes.append(f"the last batch of the data has {short} rows")
    if examples.labels is None:
        notes.append("no accuracy: the data has no labels (--label NAME says which column holds them)")
    elif not tally.labelled and tally.succeeded:
        notes.append("no accuracy: the model's answer names no class (--output NAME chooses an output)")
    elif tally.labelled and not tally.correct and any(isinstance(each, str) for each in examples.labels):
        notes.append("not one label was met: if the labels are names and the model gives numbers, use --labels A,B")
    if settings.rate and tally.latest > LATE:
        notes.append(
            f"up to {1000 * tally.latest:.0f} ms passed before a request that was due could be sent: "
            f"all {settings.connections} connections were waiting for answers, or this machine was busy"
        )
    return notes
