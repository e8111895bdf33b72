"""Outbox: messages not yet acknowledged by the driver.

A connection accepts messages that are never read: those in flight to a driver that dies are lost with it. What
a driver learns in no other way is therefore kept until it has answered a later heartbeat, and sent again after
reconnecting, before anything about how the rank ended. These messages are numbered, so that a driver recognises
repeated ones. Other messages are kept only if they could not be sent.

The simulator runs this class over a bad network: no clock and no socket here.
"""

from __future__ import annotations

import collections
from typing import Deque, List

from longboat.runtime import wire

MOST = 10_000
"""Messages that are kept at most; the oldest are dropped first."""
NUMBERED = frozenset({"checkpoint", "observed_end", "observed_start", "report"})
"""Kinds that are sent again until acknowledged. The state of an incarnation is in every heartbeat."""


class Outbox:
    """Unacknowledged messages, oldest first."""

    def __init__(self) -> None:
        self._messages: Deque[wire.Message] = collections.deque(maxlen=MOST)
        self._last_number = 0

    def __bool__(self) -> bool:
        return bool(self._messages)

    def numbered(self, message: wire.Message) -> wire.Message:
        """The message with its number, or a heartbeat with the number of the last message before it."""
        if message["is"] == "alive":
            return {**message, "said": self._last_number}
        if message["is"] not in NUMBERED or "word" in message:
            return message
        self._last_number += 1
        return {**message, "word": self._last_number}

    def keep(self, message: wire.Message, sent: bool) -> None:
        """Keep a message that may have to be sent again; heartbeats never are."""
        if message["is"] in NUMBERED or (not sent and message["is"] != "alive"):
            self._messages.append(message)

    def heard(self, answer: wire.Message) -> None:
        """Drop what the driver has acknowledged: all messages before the heartbeat that it answers."""
        while self._messages and self._messages[0].get("word", 0) <= answer.get("said", 0):
            self._messages.popleft()

    def take(self) -> List[wire.Message]:
        """All messages, to be sent and kept again."""
        messages = list(self._messages)
        self._messages.clear()
        return messages
