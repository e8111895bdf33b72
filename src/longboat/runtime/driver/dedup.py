"""Recognises repeated messages: an agent that reconnects sends again what may have been lost."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Tuple

MessageSource = Tuple[str, str, int, str]
"""Stage, role and rank that a message is about, and its kind."""
MessageNumber = Tuple[int, int, int]
"""Generation, restart and number: one agent sends all messages of an incarnation, with growing numbers."""

WRITTEN_AS = {"rank.report": "report", "rank.started": "observed_start", "rank.ended": "observed_end"}
"""Journal events that numbered messages become. Checkpoint parts become none; another driver handles them again."""


class Deduplicator:
    """The last message number seen from each source."""

    def __init__(self, before: Mapping[MessageSource, MessageNumber]) -> None:
        """before: the last numbers that earlier drivers recorded."""
        self._heard: Dict[MessageSource, MessageNumber] = dict(before)

    def again(self, stage: str, message: Mapping[str, Any]) -> bool:
        """Whether this message was seen before; remembers it."""
        if "word" not in message:
            return False
        source = (stage, str(message["role"]), int(message["rank"]), str(message["is"]))
        generation, restart = message["incarnation"]
        number = (int(generation), int(restart), int(message["word"]))
        if number <= self._heard.get(source, (0, 0, 0)):
            return True
        self._heard[source] = number
        return False
