"""Which words of agents have been heard before: an agent that finds its driver again, or another one, repeats those
that may have been lost.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Tuple

Teller = Tuple[str, str, int, str]
"""Stage, role and rank of whom it is told, and the kind of message."""
Word = Tuple[int, int, int]
"""Generation, restart and number: a life is lived once and by one agent, whose numbers only grow."""

WRITTEN_AS = {"rank.report": "report", "rank.started": "observed_start", "rank.ended": "observed_end"}
"""Events that a word becomes. Parts of checkpoints become none, and are taken in again by another driver."""


class Deduplicator:
    def __init__(self, before: Mapping[Teller, Word]) -> None:
        """before: the last ones that earlier drivers have written down."""
        self._heard: Dict[Teller, Word] = dict(before)

    def again(self, stage: str, message: Mapping[str, Any]) -> bool:
        """Whether this was heard before; from now on it was."""
        if "word" not in message:
            return False
        teller = (stage, str(message["role"]), int(message["rank"]), str(message["is"]))
        generation, restart = message["incarnation"]
        word = (int(generation), int(restart), int(message["word"]))
        if word <= self._heard.get(teller, (0, 0, 0)):
            return True
        self._heard[teller] = word
        return False
