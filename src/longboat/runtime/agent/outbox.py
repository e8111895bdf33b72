"""What an agent has said and its driver may not have heard.

A connection takes words that nobody will ever read: those on their way to a driver that dies go with it. What a driver
learns in no other way is therefore kept until it has answered a heartbeat that was sent later, and is said again to
whoever is found next, before anything about how the rank ended. Such words are numbered, so that a driver knows again
what it has heard. Of the others those are kept that could not be sent.

The simulator puts this very class under a bad network: no clock and no socket in here.
"""

from __future__ import annotations

import collections
from typing import Deque, List

from longboat.runtime import wire

MOST = 10_000
"""Messages that are kept; the oldest go first."""
NUMBERED = frozenset({"checkpoint", "observed_end", "observed_start", "report"})
"""Said again until they are known to be heard. Where a life stands is in every heartbeat."""


class Outbox:
    """Messages in the order in which they were said."""

    def __init__(self) -> None:
        self._messages: Deque[wire.Message] = collections.deque(maxlen=MOST)
        self._said = 0

    def __bool__(self) -> bool:
        return bool(self._messages)

    def numbered(self, message: wire.Message) -> wire.Message:
        """As it is to be sent: a word with its number, a heartbeat with that of the last word before it."""
        if message["is"] == "alive":
            return {**message, "said": self._said}
        if message["is"] not in NUMBERED or "word" in message:
            return message
        self._said += 1
        return {**message, "word": self._said}

    def keep(self, message: wire.Message, sent: bool) -> None:
        """Unless that is not needed: a heartbeat is followed by the next."""
        if message["is"] in NUMBERED or (not sent and message["is"] != "alive"):
            self._messages.append(message)

    def heard(self, answer: wire.Message) -> None:
        """The driver has answered a heartbeat, and so has heard all that was said before it."""
        while self._messages and self._messages[0].get("word", 0) <= answer.get("said", 0):
            self._messages.popleft()

    def take(self) -> List[wire.Message]:
        """All of it, to be said again and kept as it is."""
        found = list(self._messages)
        self._messages.clear()
        return found
