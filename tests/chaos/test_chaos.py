"""Every kind of victim, once, with a fixed seed; `make chaos` does the same at length."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.killing import SLOW, VICTIMS, Hunt, Job, compare_log
from tests.local.place import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    left = list(found.close())
    assert not left, left


def test_a_training_survives_every_kind_of_kill_and_ends_with_the_weights_of_an_undisturbed_one(place: Place) -> None:
    hunt = Hunt(place, seed=5)
    victims = [name for name in VICTIMS if name not in SLOW]
    struck = hunt.run(Job(ranks=3), victims)
    assert hunt.tally.good, "\n".join([hunt.tally.table(), *hunt.tally.problems])
    assert struck == len(victims)


@pytest.mark.slow
def test_a_stopped_agent_is_fenced_when_its_lease_runs_out(place: Place) -> None:
    hunt = Hunt(place, seed=6)
    assert hunt.run(Job(ranks=2), ["agent SIGSTOP"]) == 1
    assert hunt.tally.good, hunt.tally.problems
    assert hunt.tally.kills[0].to_generation > 10


def test_the_proof_of_the_logs_finds_a_line_that_is_missing_or_doubled(place: Place) -> None:
    hunt = Hunt(place, seed=7)
    job = Job(ranks=2, steps=30, pause=0.0)
    hunt.undisturbed(job)
    log = place.dir / "logs/main/worker-1.log"
    whole = log.read_bytes()
    assert compare_log(place.dir, 1)[1] == ""
    lines = whole.splitlines(keepends=True)
    for damaged in (
        lines[:-1],
        lines[1:],
        [*lines[:5], *lines[4:]],
        [*lines, b"noise\n"],
        [*lines[:-1], lines[-1][:-3]],
    ):
        log.write_bytes(b"".join(damaged))
        assert compare_log(place.dir, 1)[1] != ""
