"""The short form of `make sim`, and the proof that the simulator finds bugs: planted ones."""

from __future__ import annotations

import pytest

from tests.sim import scale
from tests.sim.mutants import MUTANTS, planted
from tests.sim.scenario import simulate
from tests.sim.world import Violation

SEEDS = 600
"""Within so many seeds every planted bug must be found."""


@pytest.mark.parametrize("first", [1, 51, 101, 151])
def test_the_gang_keeps_its_promises_through_thousands_of_faults(first: int) -> None:
    faults = 0
    for seed in range(first, first + 50):
        outcome = simulate(seed)
        faults += sum(outcome.faults.values())
        assert outcome.violation is None, f"make sim SEED={seed}"
        assert outcome.state in ("succeeded", "failed", "stopped")
    assert faults > 1000


def test_a_seed_gives_the_same_history_again() -> None:
    once: list[str] = []
    again: list[str] = []
    for seed in range(1, 6):
        simulate(seed, once.append)
        simulate(seed, again.append)
    assert once == again
    assert len(once) > 500


def found(mutant: str, theme: str) -> Violation | None:
    with planted(mutant):
        for seed in range(1, SEEDS):
            violation = simulate(seed, theme=theme).violation
            if violation is not None:
                print(f"{mutant}: found by {violation.promise} with seed {seed}: {violation}")
                return violation
    return None


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_planted_bug_is_found(mutant: str) -> None:
    _, theme = MUTANTS[mutant]
    assert found(mutant, theme) is not None, f"{mutant} was not found in {SEEDS} seeds"


def test_messages_grow_with_the_ranks_and_rounds_do_not() -> None:
    few, many = scale.cost(50), scale.cost(500)
    assert many.rounds == few.rounds
    assert many.messages / many.ranks < 1.05 * few.messages / few.ranks
