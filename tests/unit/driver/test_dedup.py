"""Words that agents say again: each is taken once, by one driver or by two."""

from __future__ import annotations

from typing import Any

from longboat.runtime.driver.dedup import Deduplicator
from longboat.runtime.driver.history import look_back


def word(number: int, incarnation: tuple[int, int] = (1, 0), kind: str = "report", rank: int = 0) -> dict[str, Any]:
    return {"is": kind, "role": "worker", "rank": rank, "incarnation": list(incarnation), "word": number}


def test_a_word_is_taken_once() -> None:
    doubles = Deduplicator({})
    assert [doubles.again("train", word(number)) for number in (1, 2, 1, 2, 3)] == [False, False, True, True, False]
    assert not doubles.again("train", word(1, rank=1))
    assert not doubles.again("other", word(1))
    assert not doubles.again("train", {"is": "alive"})


def test_the_agent_of_a_later_life_counts_from_one_again() -> None:
    doubles = Deduplicator({})
    assert not doubles.again("train", word(7))
    assert not doubles.again("train", word(1, (1, 1)))
    assert not doubles.again("train", word(1, (2, 0)))
    assert doubles.again("train", word(8)), "nobody asks what a life that is over has to say"


def test_another_driver_knows_the_words_that_are_in_the_journal() -> None:
    told = {"stage": "train", "role": "worker", "rank": 0, "gen": 2, "restart": 1}
    events = [
        {"ev": "rank.report", **told, "word": 4, "points": []},
        {"ev": "rank.started", **told, "word": 5},
        {"ev": "rank.ended", **told},
    ]
    doubles = Deduplicator(look_back(events).last_messages)
    assert doubles.again("train", word(4, (2, 1)))
    assert not doubles.again("train", word(3, (2, 1), kind="checkpoint")), "no event tells that it was heard"
    assert doubles.again("train", word(5, (2, 1), kind="observed_start"))
    assert not doubles.again("train", word(6, (2, 1)))
    assert not doubles.again("train", word(6, (2, 1), kind="observed_end"))
