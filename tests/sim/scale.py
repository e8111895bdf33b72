"""Ten thousand ranks: what one formation and one failure cost the coordinator.

The real gang, speech and encoder on the driver's side and a real `Duty` for every agent, without a network between
them: a round is all messages that are under way at once. Only the driver's side is timed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from longboat.runtime import wire
from longboat.runtime.agent.protocol import AgentOrder, AgentProtocol
from longboat.runtime.causes import Cause, CauseKind
from longboat.runtime.driver import codec
from longboat.runtime.gang import gang_events as g
from longboat.runtime.gang.machine import Gang
from longboat.runtime.journal import plain
from longboat.runtime.messages import RankExit
from longboat.runtime.seat import Seat


@dataclass(frozen=True)
class Cost:
    ranks: int
    messages: int
    """Heard and said by the driver."""
    rounds: int
    """From the first join to the second generation's processes."""
    said: int
    """Bytes that the driver says."""
    encoded: int
    """Bytes that it encodes: what is the same for all is encoded once."""
    cpu: float
    """Seconds of the driver's processor."""


class Coordinator:
    """The driver's part, with a stopwatch around it."""

    def __init__(self, ranks: int) -> None:
        self.seats: list[Seat] = [Seat("train", "worker", rank) for rank in range(ranks)]
        self.gang = Gang(g.GangRules(dict.fromkeys(self.seats, (True, False))))
        self.decoders = {seat: wire.Decoder() for seat in self.seats}
        self.out: list[tuple[Seat, bytes]] = []
        self.messages = self.said = self.encoded = 0
        self.cpu = 0.0
        self._starts: dict[g.Incarnation, bytes] = {}

    def hear(self, heard: list[tuple[Seat, bytes]]) -> list[tuple[Seat, bytes]]:
        begun = time.process_time()
        self.out = []
        for seat, data in heard:
            message: Any
            for message in self.decoders[seat].feed(data):
                self.messages += 1
                if message["is"] == "exited":
                    event: g.GangEvent = codec.exited(seat, codec.incarnation_of(message["incarnation"]), message)
                else:
                    event = codec.heartbeat(seat, message)
                for action in self.gang.handle(event, 1.0):
                    self._do(action)
                if message["is"] != "exited" and self.gang.renews(seat):
                    self._say(seat, self._encoded(codec.answer(message)))
        self.cpu += time.process_time() - begun
        return self.out

    def _do(self, action: g.Action) -> None:
        if isinstance(action, g.Start):
            if action.incarnation not in self._starts:
                self._starts[action.incarnation] = self._encoded(codec.start(action, 1, 1, "", "", False))
            self._say(action.seat, self._starts[action.incarnation])
        elif isinstance(action, (g.Kill, g.DumpStacks)):
            self._say(action.seat, self._encoded(codec.order(action)))

    def _encoded(self, data: bytes) -> bytes:
        self.encoded += len(data)
        return data

    def _say(self, seat: Seat, data: bytes) -> None:
        self.messages += 1
        self.said += len(data)
        self.out.append((seat, data))


def cost(ranks: int) -> Cost:
    """Forms a gang, lets one rank fail, and ends when the second generation has been started everywhere."""
    coordinator = Coordinator(ranks)
    coordinator.gang.begin(0.0)
    duties = {
        seat: AgentProtocol(f"{seat.rank:016x}", ["10.0.0.1", [1, 2, seat.rank + 1024]], 0.0, 0.0)
        for seat in coordinator.seats
    }
    known: dict[int, wire.Message] = {}
    """Bytes that many agents get are read once: their time is not what is measured."""
    heard = [(seat, wire.encode({"is": "join", **duty.seen(0.0, 0.0)})) for seat, duty in duties.items()]
    rounds = 0
    while heard:
        rounds += 1
        said = coordinator.hear(heard)
        heard = []
        for seat, data in said:
            message = known.get(id(data)) or wire.Decoder().feed(data)[0]
            if message["is"] == "start":
                known[id(data)] = message
            heard += [(seat, answer) for answer in _obey(duties[seat], message)]
        if all(duty.running for duty in duties.values()) and coordinator.gang.generation == 1:
            first = coordinator.seats[0]
            heard.append((first, _ended(duties[first], 1, Cause(CauseKind.USER_ERROR, "it failed", exit_code=1))))
    assert coordinator.gang.generation == 2
    assert all(duty.running and duty.incarnation == (2, 0) for duty in duties.values())
    return Cost(ranks, coordinator.messages, rounds, coordinator.said, coordinator.encoded, coordinator.cpu)


def _obey(duty: AgentProtocol, message: wire.Message) -> list[bytes]:
    order = duty.order(message, 0.0, 0.0)
    if order is AgentOrder.START:
        duty.begun((message["incarnation"][0], message["incarnation"][1]))
    elif order is AgentOrder.KILL:
        return [_ended(duty, -1, None)]
    return []


def _ended(duty: AgentProtocol, code: int, cause: Cause | None) -> bytes:
    ending = RankExit(code=code, signal=0 if cause else 9, at=1.0, asked=cause is None, cause=plain(cause))
    duty.ended(ending)
    return wire.encode({"is": "exited", "incarnation": list(duty.incarnation), **ending})


def report() -> list[str]:
    lines = ["", "A formation and one failure, as the coordinator sees them:", ""]
    lines.append(f"{'ranks':>8} {'messages':>9} {'a rank':>7} {'rounds':>7} {'encoded':>10} {'said':>10} {'cpu':>8}")
    for ranks in (10, 100, 1000, 10_000):
        found = cost(ranks)
        lines.append(
            f"{ranks:8d} {found.messages:9d} {found.messages / ranks:7.2f} {found.rounds:7d} "
            f"{found.encoded / 1e6:7.1f} MB {found.said / 1e6:7.1f} MB {found.cpu:6.2f} s"
        )
    return lines
