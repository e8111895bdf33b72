"""Batches: who shares one, who is refused, who is not computed. The model here counts what it is asked."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from longboat.runtime.bundle import Bundle, Tensor
from longboat.serve import metrics, server
from longboat.serve.batching import INLINE, BatchCosts, Batcher, BatchLimits
from longboat.serve.request_errors import RefusalReason, RequestRefused
from longboat.serve.settings import ServerSettings


class Doubling:
    """y = 2 x, as fast as it is told to be; it keeps the rows of every call."""

    explainer: Doubling | None = None

    def __init__(self, gate: threading.Event | None = None) -> None:
        self.bundle = Bundle(
            "twice",
            1,
            "",
            inputs=(Tensor("x", "float32", (None, None)),),
            outputs=(Tensor("y", "float32", (None, None)),),
        )
        self.gate = gate
        self.seconds = 2 * INLINE if gate else 0.0
        self.calls: list[int] = []

    def run(self, inputs: Any) -> Any:
        if self.gate is not None:
            self.gate.wait(60)
        self.calls.append(len(inputs["x"]))
        if (inputs["x"] == 13).any():
            raise ValueError("thirteen")
        if inputs["x"].size > 1000:
            raise MemoryError
        if (inputs["x"] == 66).any():
            raise SystemError("broken")
        return {"y": 2 * inputs["x"]}


def rows(*values: float, width: int = 1) -> dict[str, Any]:
    return {"x": np.repeat(np.array(values, np.float32)[:, None], width, axis=1)}


def play(model: Doubling, limits: BatchLimits, scene: Callable[[Batcher], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        batcher = Batcher(model, limits, asyncio.get_running_loop())
        try:
            return await scene(batcher)
        finally:
            batcher.close()

    return asyncio.run(main())


async def gathered(batcher: Batcher, *inputs: dict[str, Any]) -> list[Any]:
    calls = (batcher.ask(each, len(each["x"])) for each in inputs)
    return await asyncio.gather(*calls, return_exceptions=True)


def numbers(found: list[Any]) -> list[Any]:
    return [each if isinstance(each, Exception) else each["y"][:, 0].tolist() for each in found]


def test_what_arrives_together_is_computed_together_and_told_apart() -> None:
    model = Doubling()
    found = play(model, BatchLimits(), lambda batcher: gathered(batcher, rows(1), rows(2, 3), rows(4)))
    assert numbers(found) == [[2], [4, 6], [8]]
    assert model.calls == [4]


def test_no_batch_is_larger_than_allowed_but_a_large_request_is_taken_alone() -> None:
    model = Doubling()
    found = play(
        model, BatchLimits(rows=3), lambda batcher: gathered(batcher, rows(1, 2), rows(3, 4), rows(*range(7)), rows(5))
    )
    assert numbers(found) == [[2, 4], [6, 8], [0, 2, 4, 6, 8, 10, 12], [10]]
    assert model.calls == [2, 2, 7, 1]


def test_rows_of_another_shape_are_another_batch() -> None:
    model = Doubling()
    found = play(model, BatchLimits(), lambda batcher: gathered(batcher, rows(1), rows(2, width=3), rows(3, width=3)))
    assert numbers(found) == [[2], [4], [6]]
    assert model.calls == [1, 2]


def test_one_bad_request_does_not_fail_its_neighbours() -> None:
    found = numbers(
        play(Doubling(), BatchLimits(), lambda batcher: gathered(batcher, rows(1), rows(13), rows(66), rows(2)))
    )
    assert (found[0], found[3]) == ([2], [4])
    assert found[1].reason is RefusalReason.INVALID
    assert "thirteen" in found[1].message
    assert found[2].reason is RefusalReason.FAILED


def test_a_batch_too_large_for_memory_is_computed_in_parts() -> None:
    model = Doubling()
    found = play(
        model,
        BatchLimits(),
        lambda batcher: gathered(batcher, rows(1, width=600), rows(2, width=600), rows(3, 4, width=600)),
    )
    assert numbers(found)[:2] == [[2], [4]]
    assert found[2].reason is RefusalReason.MEMORY
    assert found[2].message == "model 'twice' ran out of memory on this batch: send fewer rows at a time"


def test_while_one_batch_is_computed_the_next_one_gathers() -> None:
    gate = threading.Event()
    model = Doubling(gate)

    async def scene(batcher: Batcher) -> list[Any]:
        first = asyncio.ensure_future(batcher.ask(rows(1), 1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert batcher.working
        later = [asyncio.ensure_future(batcher.ask(rows(number), 1)) for number in (2, 3, 4)]
        await asyncio.sleep(0)
        gate.set()
        return await asyncio.gather(first, *later)

    assert numbers(play(model, BatchLimits(), scene)) == [[2], [4], [6], [8]]
    assert model.calls == [1, 3]


def test_predictions_do_not_wait_for_an_explanation_and_the_model_is_in_use_until_it_is_there() -> None:
    gate = threading.Event()
    model = Doubling()
    model.explainer = explainer = Doubling(gate)

    async def scene(batcher: Batcher) -> list[Any]:
        assert batcher.explainer is not None
        first, *later = (asyncio.ensure_future(batcher.explainer.ask(rows(number), 1)) for number in (1, 2, 3))
        answered = await batcher.ask(rows(5), 1)
        use = [batcher.in_use, batcher.working]
        gate.set()
        explained = await asyncio.gather(first, *later)
        assert [*use, batcher.in_use] == [True, False, False]
        return [answered, *explained]

    assert numbers(play(model, BatchLimits(), scene)) == [[10], [2], [4], [6]]
    assert (sum(model.calls), sum(explainer.calls)) == (1, 3)


def test_the_latency_bound_of_predictions_refuses_no_explanation() -> None:
    model = Doubling()
    model.explainer = Doubling()
    model.explainer.seconds = 1.0  # as for every explainer: not measured

    async def scene(batcher: Batcher) -> list[Any]:
        assert batcher.explainer is not None
        return await asyncio.gather(*(batcher.explainer.ask(rows(number), 1) for number in (1, 2, 3, 4)))

    assert numbers(play(model, BatchLimits(bound=0.1), scene)) == [[2], [4], [6], [8]]


def test_a_full_queue_refuses_at_once() -> None:
    gate = threading.Event()

    async def scene(batcher: Batcher) -> list[Any]:
        first = asyncio.ensure_future(batcher.ask(rows(0), 1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        calls = [asyncio.ensure_future(batcher.ask(rows(n), 1)) for n in range(1, 6)]
        await asyncio.sleep(0)
        refused = [call.exception() for call in calls if call.done()]
        gate.set()
        kept = await asyncio.gather(first, *calls, return_exceptions=True)
        assert [isinstance(each, RequestRefused) for each in kept] == [False, False, False, False, True, True]
        return refused

    refused = play(Doubling(gate), BatchLimits(queue=3), scene)
    assert [error.reason for error in refused] == [RefusalReason.BUSY, RefusalReason.BUSY]
    assert refused[0].message == "the queue of model 'twice' is full: 3 rows are waiting"


def test_whoever_is_gone_or_too_late_is_not_computed() -> None:
    gate = threading.Event()
    model = Doubling(gate)

    async def scene(batcher: Batcher) -> list[Any]:
        first = asyncio.ensure_future(batcher.ask(rows(0), 1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gone = asyncio.ensure_future(batcher.ask(rows(1), 1))
        late = asyncio.ensure_future(batcher.ask(rows(2), 1, time.monotonic() - 1))
        kept = asyncio.ensure_future(batcher.ask(rows(3), 1))
        await asyncio.sleep(0)
        gone.cancel()
        gate.set()
        return list(await asyncio.gather(first, gone, late, kept, return_exceptions=True))

    first, gone, late, kept = play(model, BatchLimits(), scene)
    assert isinstance(gone, asyncio.CancelledError)
    assert late.reason is RefusalReason.DEADLINE
    assert numbers([first, kept]) == [[0], [6]]
    assert model.calls == [1, 1]


def test_an_idle_model_waits_for_company_it_has_seen_before() -> None:
    model = Doubling()

    async def scene(batcher: Batcher) -> None:
        await gathered(batcher, rows(1), rows(2))
        assert model.calls == [2]
        first = asyncio.ensure_future(batcher.ask(rows(3), 1))
        for _ in range(5):
            await asyncio.sleep(0)
        assert model.calls == [2], "it should have waited"
        second = asyncio.ensure_future(batcher.ask(rows(4), 1))
        await asyncio.gather(first, second)
        assert model.calls == [2, 2]

    play(model, BatchLimits(wait=10.0), scene)


def test_a_lone_client_never_waits() -> None:
    model = Doubling()

    async def scene(batcher: Batcher) -> None:
        for _ in range(20):
            await asyncio.wait_for(batcher.ask(rows(1), 1), 60)

    play(model, BatchLimits(wait=3600.0), scene)
    assert model.calls == [1] * 20


def test_a_bound_makes_batches_smaller_and_refuses_what_would_be_late() -> None:
    gate = threading.Event()
    model = Doubling(gate)

    async def scene(batcher: Batcher) -> list[Any]:
        for size, seconds in ((1, 0.010), (16, 0.025), (64, 0.100)):
            batcher.slow_costs.seconds[(size - 1).bit_length()] = seconds
        first = asyncio.ensure_future(batcher.ask(rows(0), 1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        calls = [asyncio.ensure_future(batcher.ask(rows(1), 1)) for _ in range(39)]
        await asyncio.sleep(0)
        gate.set()
        return await asyncio.gather(first, *calls, return_exceptions=True)

    found = play(model, BatchLimits(rows=64, bound=0.060), scene)
    refused = [each for each in found if isinstance(each, RequestRefused)]
    assert refused
    assert all(
        each.reason is RefusalReason.BUSY and "within its latency bound of 60 ms" in each.message for each in refused
    )
    assert max(model.calls) <= 16


def test_a_bound_that_cannot_be_kept_still_lets_an_idle_model_answer() -> None:
    """However slow the machine has become: else nothing would ever tell that it is quick again."""

    async def scene(batcher: Batcher) -> list[Any]:
        batcher.slow_costs.seconds[0] = 1.0
        return [await batcher.ask(rows(number), 1) for number in range(3)]

    gate = threading.Event()
    gate.set()
    assert numbers(play(Doubling(gate), BatchLimits(bound=0.001), scene)) == [[0], [2], [4]]


def test_what_has_waited_too_long_for_the_bound_is_refused_for_the_sake_of_the_rest() -> None:
    gate = threading.Event()
    model = Doubling(gate)

    async def scene(batcher: Batcher) -> list[Any]:
        batcher.slow_costs.seconds[0] = 0.0
        calls = [asyncio.ensure_future(batcher.ask(rows(n), 1)) for n in range(4)]
        await asyncio.sleep(0)
        for work in list(batcher._queue)[:2]:
            work.arrived -= 300.0
        gate.set()
        return await asyncio.gather(*calls, return_exceptions=True)

    found = play(model, BatchLimits(bound=60.0), scene)
    assert [isinstance(each, RequestRefused) for each in found] == [True, True, False, False]
    assert numbers(found[2:]) == [[4], [6]]


def test_costs_are_learned_from_the_nearest_size() -> None:
    costs = BatchCosts()
    assert costs.of(8) == 0
    costs.learn(1, 0.001)
    assert costs.of(4) == pytest.approx(0.004)
    costs.learn(4, 0.002)
    assert costs.of(4) == 0.002
    for _ in range(200):
        costs.learn(4, 0.0005)
    assert costs.of(4) == pytest.approx(0.0005, rel=0.01)


def test_a_batcher_at_the_address_of_one_that_is_gone_is_counted_from_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a reload the new version's batcher may lie where the old one lay."""
    monkeypatch.setattr(server, "id", lambda _: 1, raising=False)
    counting = server.ModelServer(ServerSettings(()), socket.socket(), metrics.SharedMetrics(1), 0, lambda _: None)

    async def scene(batcher: Batcher) -> None:
        await gathered(batcher, rows(1, 2, 3))
        counting._count((("model", "twice"),), batcher)

    for _ in range(2):
        play(Doubling(), BatchLimits(), scene)
    told = metrics.text([counting._numbers])
    assert 'longboat_rows_total{model="twice"} 6\n' in told
    assert 'longboat_batches_total{model="twice",rows="4"} 2\n' in told
